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
  set(options "")
  set(subcommands "")
  set(part "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^([A-Z][a-z]*):$")
      set(part ${CMAKE_MATCH_1})
    elseif(part STREQUAL "Subcommands" AND line MATCHES "^  ([a-z_-]+) ")
      list(APPEND subcommands ${CMAKE_MATCH_1})
    elseif(part MATCHES "Options|Positionals" AND
           line MATCHES "^  ([^ ]+( [^ ]+)?)( +(.*))?$")
      set(flag "${CMAKE_MATCH_1}")
      set(text "${CMAKE_MATCH_4}")
      roff("${flag}" flag)
      roff("${text}" text)
      string(APPEND options ".TP\n.B ${flag}\n")
      if(text)
        string(APPEND options "${text}\n")
      endif()
    elseif(line MATCHES "^ +(.+)$")  # goes on with the option above
      roff("${CMAKE_MATCH_1}" text)
      string(APPEND options "${text}\n")
    elseif(line AND NOT line MATCHES "^Usage:")  # a footer
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
describe("")
set(COMMANDS "${page}")
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
