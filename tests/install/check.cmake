# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Run by CTest. Installs BUILD into an empty prefix, then configures, builds and runs programs in
# C++, C and Fortran against it: by find_package, by pkg-config and the MPI compilers, and by
# find_package in the build tree itself. What is installed is what the list below says.
file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)

function(check)
  execute_process(COMMAND ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ECHO_OUTPUT_VARIABLE)
  if(status)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "the consumer test failed (exit status ${status}); run\n  ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# check_project(source found_in name [-D...]): builds it against the tutti that is found there.
function(check_project source found_in name)
  check(${CMAKE_COMMAND} -S ${source} -B ${WORK}/${name} -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${found_in} -DCMAKE_C_COMPILER=${C_COMPILER}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
    -DCMAKE_C_FLAGS=${C_FLAGS} -DCMAKE_BUILD_TYPE=Release ${ARGN})
  check(${CMAKE_COMMAND} --build ${WORK}/${name})
endfunction()

check(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
set(expected bin/tutti include/tutti/tutti.hpp include/tutti/tutti.h include/tutti/export.h
  include/tutti/checkpoint.hpp share/man/man1/tutti.1 share/doc/tutti/LICENSE
  share/doc/tutti/examples/c/minimal.c share/tutti/slurm/train.sbatch)
if(FORTRAN)
  list(APPEND expected include/tutti/modules/tutti.mod)
endif()
foreach(file IN LISTS expected)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "${file} is not installed in ${prefix}")
  endif()
endforeach()
check(${CMAKE_CURRENT_LIST_DIR}/check_man_page ${prefix}/bin/tutti ${prefix}/share/man/man1/tutti.1)

# The installed examples, each alone, against the install.
set(examples ${prefix}/share/doc/tutti/examples)
check_project(${examples}/cpp ${prefix} cpp)
check(${MPIRUN} 2 ${WORK}/cpp/minimal)
check_project(${examples}/c ${prefix} c)
check(${MPIRUN} 2 ${WORK}/c/minimal)
if(NOT output MATCHES "step 100: loss 0.0000")
  message(FATAL_ERROR "the C example has another result")
endif()
if(FORTRAN)
  check_project(${examples}/fortran ${prefix} fortran)
  check(${MPIRUN} 2 ${WORK}/fortran/heat 20)
endif()

# The same without CMake.
find_program(pkg_config pkg-config)
if(pkg_config AND MPICC AND NOT CXX_FLAGS MATCHES "sanitize")
  file(GLOB_RECURSE pc ${prefix}/*/tutti.pc)
  get_filename_component(pc ${pc} DIRECTORY)
  set(ENV{PKG_CONFIG_PATH} ${pc})
  file(MAKE_DIRECTORY ${WORK}/pkg-config)
  # check_compiler(package compiler program source ...)
  function(check_compiler package compiler program)
    check(sh -c "${compiler} $(${pkg_config} --cflags ${package}) -o ${WORK}/pkg-config/${program} \
$* $(${pkg_config} --libs ${package})" sh ${ARGN})
  endfunction()
  check_compiler(tutti ${MPICXX} consumer ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cpp)
  check(${MPIRUN} 2 ${WORK}/pkg-config/consumer)
  check_compiler(tutti_c ${MPICC} minimal_c ${examples}/c/minimal.c)
  check(${MPIRUN} 2 ${WORK}/pkg-config/minimal_c)
  if(FORTRAN AND MPIFORT)
    check_compiler(tutti_fortran ${MPIFORT} heat -J${WORK}/pkg-config
      ${examples}/fortran/surrogate.f90 ${examples}/fortran/heat.f90)
    check(${MPIRUN} 2 ${WORK}/pkg-config/heat 20)
  endif()
endif()

# The build tree, without installing it.
check_project(${CMAKE_CURRENT_LIST_DIR}/consumer ${BUILD} build_tree -DEXAMPLES=${examples}
  -DFORTRAN=${FORTRAN})
check(${MPIRUN} 2 ${WORK}/build_tree/consumer)
check(${MPIRUN} 2 ${WORK}/build_tree/minimal_c)
if(FORTRAN)
  check(${MPIRUN} 2 ${WORK}/build_tree/heat 20)
endif()

# A Kokkos that is not the one of the build is refused by name, not by the linker.
file(WRITE ${WORK}/other_kokkos/lib/cmake/Kokkos/KokkosConfig.cmake "set(Kokkos_DEVICES CUDA)\n")
file(WRITE ${WORK}/other_kokkos/lib/cmake/Kokkos/KokkosConfigVersion.cmake
  "set(PACKAGE_VERSION 9.8.7)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/other_kokkos/build
    -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix} -DKokkos_ROOT=${WORK}/other_kokkos
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(status EQUAL 0 OR NOT output MATCHES "Kokkos 9.8.7 for CUDA does not fit this tutti")
  message(FATAL_ERROR "a Kokkos of another release was taken (exit status ${status}):\n${output}")
endif()

# A project that can do without tutti goes on where a library of tutti's is missing.
file(WRITE ${WORK}/optional/CMakeLists.txt "cmake_minimum_required(VERSION 3.22)
project(optional LANGUAGES C CXX)
find_package(tutti QUIET)
if(tutti_FOUND OR NOT tutti_NOT_FOUND_MESSAGE MATCHES \"^no .+; (install|add) \")
  message(FATAL_ERROR \"tutti_FOUND: \${tutti_FOUND}; \${tutti_NOT_FOUND_MESSAGE}\")
endif()
")
set(hide -DCMAKE_DISABLE_FIND_PACKAGE_)
foreach(hidden IN ITEMS -DTUTTI_XXHASH_INCLUDE= ${hide}Kokkos=ON ${hide}HDF5=ON
    "${hide}hwy=ON;${hide}PkgConfig=ON")
  file(REMOVE_RECURSE ${WORK}/optional/build)
  check(${CMAKE_COMMAND} -S ${WORK}/optional -B ${WORK}/optional/build -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} ${hidden})
endforeach()
