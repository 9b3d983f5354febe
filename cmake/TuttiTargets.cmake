# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# How every library and test of tutti is declared, so that a part's own CMake file is a list of
# names.

# tutti_add_library(kernels SOURCES a.cpp ... PUBLIC lib ... PRIVATE lib ...)
# makes tutti_kernels and tutti::kernels.
function(tutti_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(tutti_${name} ${arg_SOURCES})
  add_library(tutti::${name} ALIAS tutti_${name})
  set_target_properties(tutti_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  tutti_shared(tutti_${name})
  target_compile_features(tutti_${name} PUBLIC cxx_std_20)
  target_include_directories(tutti_${name}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(tutti_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  # Also in a project whose own flags say -ffast-math: a NaN must compare as one.
  target_compile_options(tutti_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fno-fast-math;-ffp-contract=off>")
  tutti_warnings(tutti_${name})
endfunction()

# Where BUILD_SHARED_LIBS makes it a shared library: its version, where it finds its siblings, and
# that it exports tutti's names and nothing else. Before 1.0 a minor version may break interfaces.
function(tutti_shared target)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "SHARED_LIBRARY" AND UNIX AND NOT APPLE)
    # By namespace instead of by an attribute on every class: one list, in one file.
    set(map ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    set_target_properties(${target} PROPERTIES
      CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF LINK_DEPENDS ${map})
    target_link_options(${target} PRIVATE LINKER:--version-script=${map} LINKER:-z,defs)
  endif()
endfunction()

function(tutti_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wshadow>
    $<$<COMPILE_LANGUAGE:Fortran>:-Wno-compare-reals>  # bits are promised, so they are compared
    "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>")
  # GCC 12 sees overlaps in std::string's concatenation that are not there (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(TUTTI_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# tutti_add_test(name SOURCES a.cpp LIBRARIES tutti::runtime RANKS 1 2 4 TIMEOUT s LABELS unit mpi)
# One executable on the MPI-aware Catch2 main; one CTest a rank count (name.4), each with a timeout.
# Without RANKS it runs as a single process without mpirun. What a sanitizer can afford is known
# here: tests of at most two ranks get the label `small`, and all of one that says `threads` keep
# it; the targets tests_small and tests_threads build what these run (tests/sanitizers).
function(tutti_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBRARIES;RANKS;LABELS" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  target_link_libraries(test_${name} PRIVATE tutti_test_main ${arg_LIBRARIES})
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  tutti_warnings(test_${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  if("threads" IN_LIST arg_LABELS)
    tutti_add_to_target(tests_threads test_${name})
  endif()
  if(NOT arg_RANKS)
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES
      TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS};small")
    tutti_add_to_target(tests_small test_${name})
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    set(labels ${arg_LABELS} mpi)
    if(ranks LESS_EQUAL 2)
      list(APPEND labels small)
      tutti_add_to_target(tests_small test_${name})
    endif()
    add_test(NAME ${name}.${ranks}
      COMMAND ${PROJECT_SOURCE_DIR}/tests/mpirun ${ranks} $<TARGET_FILE:test_${name}>)
    set_tests_properties(${name}.${ranks} PROPERTIES
      TIMEOUT ${arg_TIMEOUT} LABELS "${labels}" PROCESSORS ${ranks})
  endforeach()
endfunction()

# tutti_add_gpu_test(name RANKS 1 2): in a CUDA build, the test once more with a GPU in place of the
# devices that stand for one: gpu.name, label gpu; skipped where there is none.
function(tutti_add_gpu_test name)
  if(NOT TUTTI_ENABLE_CUDA)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "RANKS" ${ARGN})
  set(tests)
  if(NOT arg_RANKS)
    add_test(NAME gpu.${name} COMMAND test_${name})
    set(tests gpu.${name})
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME gpu.${name}.${ranks}
      COMMAND ${PROJECT_SOURCE_DIR}/tests/mpirun ${ranks} $<TARGET_FILE:test_${name}>)
    list(APPEND tests gpu.${name}.${ranks})
  endforeach()
  set_tests_properties(${tests} PROPERTIES LABELS gpu TIMEOUT 600 RUN_SERIAL TRUE
    ENVIRONMENT TUTTI_TEST_DEVICE=cuda SKIP_RETURN_CODE 77)
endfunction()

function(tutti_add_to_target group target)
  if(NOT TARGET ${group})
    add_custom_target(${group})
  endif()
  add_dependencies(${group} ${target})
endfunction()
