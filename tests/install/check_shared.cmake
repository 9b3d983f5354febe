# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Run by CTest. A project takes tutti by add_subdirectory, as shared libraries, with flags of its
# own that tutti must not heed; programs in C++, C and Fortran run, and the libraries export tutti's
# names and nothing else.
file(REMOVE_RECURSE ${WORK})

function(check)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output)
  if(status)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR
      "the shared build failed (exit status ${status}): ${output}; run\n  ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

check(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/parent -B ${WORK} -G ${GENERATOR}
  -DTUTTI_SOURCE=${SOURCE} -DBUILD_SHARED_LIBS=ON -DTUTTI_ENABLE_FORTRAN=${FORTRAN}
  -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
  -DCMAKE_CXX_FLAGS=${CXX_FLAGS} -DCMAKE_BUILD_TYPE=Check)  # unoptimized: faster to build
check(${CMAKE_COMMAND} --build ${WORK} --parallel 2)
foreach(program IN ITEMS consumer minimal_c)
  check(${MPIRUN} 2 ${WORK}/${program})
endforeach()
if(FORTRAN)
  check(${MPIRUN} 2 ${WORK}/heat 20)
endif()

find_program(nm nm)
file(GLOB libraries ${WORK}/lib/libtutti_*.so)
list(LENGTH libraries count)
if(NOT nm OR count LESS 4)
  message(FATAL_ERROR "no symbols to look at (nm: ${nm}, libraries: ${libraries})")
endif()
foreach(library IN LISTS libraries)
  check(${nm} -D -C --defined-only --format=posix ${library})
  string(REGEX MATCHALL "[^\n]+" symbols "${output}")
  list(LENGTH symbols count)
  list(FILTER symbols EXCLUDE REGEX
    "^(tutti_|tutti::|(typeinfo|typeinfo name|vtable) for tutti::|__tutti_MOD_|__vtab_tutti_)")
  if(symbols OR count LESS 10)
    message(FATAL_ERROR "${library} exports ${count} names, of others than tutti's: ${symbols}; "
      "see cmake/exports.map")
  endif()
endforeach()
