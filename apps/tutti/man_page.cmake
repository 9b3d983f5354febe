# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Writes the manual page from tutti.1.in and what the command says of itself, so that commands and
# options are named in one place only.
# usage: cmake -DTUTTI=<command> -DTEMPLATE=tutti.1.in -DVERSION=... -DOUTPUT=tutti.1
#   -P man_page.cmake
cmake_minimum_required(VERSION 3.22)

# roff takes a backslash and a leading dot or quote for its own; a dash must stay one.
function(roff text result)
  string(REPLACE "\\" "\\e" text "${text}")
  string(REPLACE "\t" "\\[char59]" text "${text}")
  string(REPLACE "-" "\\-" text "${text}")
  string(REGEX REPLACE "^([.'])" "\\\\&\\1" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# Appends the section of `tutti <words>`, and of its subcommands, to `page`.
function(describe words)
  execute_process(COMMAND ${TUTTI} ${words} --help
    OUTPUT_VARIABLE help RESULT_VARIABLE status)
  if(status)
    message(FATAL_ERROR "the manual page cannot be written (${TUTTI} ${words} --help failed)")
  endif()
  string(REPLACE ";" "\t" help "${help}")  # of a text; for a list it would be a separator
  string(REPLACE "\n" ";" lines "${help}")
  list(POP_FRONT lines summary)
  string(STRIP "${summary}" summary)
  set(options "")
  set(subcommands "")
  set(part "")
  foreach(line IN LISTS lines)
    # CLI11 2.6 shouts its titles, and aligns the long names: "  -h,     --help". Before it they are
    # "Options:" and "  -h,--help". What a line says begins in column 30, or on the line below.
    string(REGEX REPLACE " +$" "" line "${line}")
    if(line MATCHES "^([A-Z][A-Za-z]*):$")
      string(TOUPPER ${CMAKE_MATCH_1} part)
    elseif(part STREQUAL "SUBCOMMANDS" AND line MATCHES "^  ([a-z_-]+) ")
      list(APPEND subcommands ${CMAKE_MATCH_1})
    elseif(part MATCHES "OPTIONS|POSITIONALS" AND line MATCHES "^   ? ? ? ? ? ? ? ?[^ ]")
      set(flag "${line}")
      set(text "")
      if(line MATCHES "^(.............................) +(.*)$")
        set(flag "${CMAKE_MATCH_1}")
        set(text "${CMAKE_MATCH_2}")
      endif()
      string(STRIP "${flag}" flag)
      string(REGEX REPLACE ", +" "," flag "${flag}")
      roff("${flag}" flag)
      roff("${text}" text)
      string(APPEND options ".TP\n.B ${flag}\n")
      if(text)
        string(APPEND options "${text}\n")
      endif()
    elseif(line MATCHES "^ +([^ ].*)$")  # goes on with the option above
      roff("${CMAKE_MATCH_1}" text)
      string(APPEND options "${text}\n")
    elseif(line AND part)  # a footer; in front of all parts is the usage
      roff("${line}" text)
      string(APPEND options ".PP\n${text}\n")
    endif()
  endforeach()
  if(words AND NOT subcommands)
    string(REPLACE ";" " " title "${words}")
    roff("${summary}" summary)
    string(APPEND page ".SS tutti ${title}\n${summary}.\n${options}")
  endif()
  foreach(subcommand IN LISTS subcommands)
    set(longer ${words} ${subcommand})
    describe("${longer}")
  endforeach()
  set(page "${page}" PARENT_SCOPE)
endfunction()

set(page "")
# A CUDA build may be made where its libraries cannot be loaded, such as on a login node.
execute_process(COMMAND ${TUTTI} --version
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE reason)
if(status)
  message(WARNING "the manual page has no commands (${TUTTI} does not run here: ${reason})")
  set(page "\\fBtutti \\-\\-help\\fP names them.")
else()
  describe("")
endif()
set(COMMANDS "${page}")
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
