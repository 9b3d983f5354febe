# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# find_package(tutti) gives tutti::tutti and its parts tutti::io, tutti::runtime and tutti::kernels.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(NOT DEFINED MPI_CXX_SKIP_MPICXX)
  set(MPI_CXX_SKIP_MPICXX ON)  # tutti uses the C interface only
endif()
find_dependency(MPI 3.1 COMPONENTS C CXX)
find_dependency(fmt)
find_dependency(nlohmann_json)
include(${CMAKE_CURRENT_LIST_DIR}/TuttiHighway.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TuttiKokkos.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TuttiXxhash.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TuttiHDF5.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/tuttiTargets.cmake)
