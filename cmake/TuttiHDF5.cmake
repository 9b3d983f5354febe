# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::hdf5: the C library of a parallel HDF5, 1.10 to 2.x; a serial one is refused.
# Installed beside tuttiConfig.cmake, so it is also what a consumer runs; there
# TUTTI_BUILT_WITH_HDF5_WRAPPER is that of tutti's own build, taken before the system's.
# Sets TUTTI_LACKS to what is missing: an error of tutti's own build, but a consumer may do without
# tutti.
set(HDF5_PREFER_PARALLEL TRUE)
if(NOT HDF5_ROOT AND NOT DEFINED ENV{HDF5_ROOT})
  # Debian may have a serial, an MPICH and an Open MPI flavour side by side, and h5pcc names any of
  # them.
  find_program(HDF5_C_COMPILER_EXECUTABLE
    NAMES ${TUTTI_BUILT_WITH_HDF5_WRAPPER} h5pcc.openmpi h5pcc)
  mark_as_advanced(HDF5_C_COMPILER_EXECUTABLE)
endif()
find_package(HDF5 COMPONENTS C)
if(NOT HDF5_FOUND)
  string(CONCAT TUTTI_LACKS
    "no HDF5 found (neither its compiler wrapper h5pcc nor its CMake package); "
    "install libhdf5-openmpi-dev or give -DHDF5_ROOT=<prefix of a parallel HDF5>")
  return()
endif()
if(NOT HDF5_IS_PARALLEL)
  string(CONCAT TUTTI_LACKS
    "HDF5 ${HDF5_VERSION} in ${HDF5_C_INCLUDE_DIRS} cannot be used (it was built "
    "without MPI); install libhdf5-openmpi-dev or give -DHDF5_ROOT=<prefix of a parallel HDF5>")
  return()
endif()
if(TARGET tutti::hdf5)
  return()
endif()
add_library(tutti::hdf5 INTERFACE IMPORTED GLOBAL)
target_include_directories(tutti::hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_compile_definitions(tutti::hdf5 INTERFACE ${HDF5_C_DEFINITIONS})
target_link_libraries(tutti::hdf5 INTERFACE ${HDF5_C_LIBRARIES} MPI::MPI_C)
