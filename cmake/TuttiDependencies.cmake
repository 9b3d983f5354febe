# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Every library tutti stands on, found in one place; a part only names targets:
#   Threads::Threads MPI::MPI_C MPI::MPI_CXX tutti::kokkos tutti::hdf5 tutti::xxhash
#   hwy::hwy fmt::fmt nlohmann_json::nlohmann_json tutti::nccl
# and in apps/ also CLI11::CLI11 tomlplusplus::tomlplusplus ZLIB::ZLIB tutti::blas
# What the installed package looks for in the same way.
macro(tutti_find module)
  set(TUTTI_LACKS)
  include(${module})
  if(TUTTI_LACKS)
    message(FATAL_ERROR "${TUTTI_LACKS}")
  endif()
endmacro()

find_package(Threads REQUIRED)
set(MPI_CXX_SKIP_MPICXX ON)  # the C interface only
find_package(MPI 3.1 REQUIRED COMPONENTS C CXX)
if(TUTTI_ENABLE_FORTRAN)
  find_package(MPI 3.1 REQUIRED COMPONENTS Fortran)
  if(NOT MPI_Fortran_HAVE_F08_MODULE)
    message(FATAL_ERROR "the Fortran module cannot be built (this MPI has no module mpi_f08 that "
      "${CMAKE_Fortran_COMPILER} can read); use MPI's own compiler or give "
      "-DTUTTI_ENABLE_FORTRAN=OFF")
  endif()
endif()
find_package(fmt REQUIRED)
tutti_find(TuttiHighway)
find_package(nlohmann_json REQUIRED)
tutti_find(TuttiKokkos)
tutti_find(TuttiXxhash)
tutti_find(TuttiHDF5)
if(TUTTI_ENABLE_NCCL)
  tutti_find(TuttiNccl)
endif()
if(TUTTI_ENABLE_APPS)
  find_package(CLI11 REQUIRED)
  find_package(tomlplusplus REQUIRED)
  find_package(ZLIB REQUIRED)
  include(TuttiBlas)
endif()

# So that a project that takes tutti by add_subdirectory can link it from its own folders.
get_property(_tutti_imported DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(_tutti_target IN LISTS _tutti_imported)
  set_property(TARGET ${_tutti_target} PROPERTY IMPORTED_GLOBAL TRUE)
endforeach()
