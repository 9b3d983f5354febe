# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::blas: OpenBLAS with cblas.h and openblas_set_num_threads, for the reference trainer only.
# OpenBLAS' own configuration sets variables and no target.
include_guard(GLOBAL)
find_package(OpenBLAS CONFIG QUIET)
if(NOT OpenBLAS_FOUND)
  message(FATAL_ERROR "no OpenBLAS found (its CMake package is missing); "
    "install libopenblas-dev, or give -DTUTTI_ENABLE_APPS=OFF to build the library alone")
endif()
# Debian unstable's names a folder that is not there.
find_path(TUTTI_CBLAS_INCLUDE_DIR NAMES cblas.h HINTS ${OpenBLAS_INCLUDE_DIRS}
  PATH_SUFFIXES openblas openblas-pthread)
mark_as_advanced(TUTTI_CBLAS_INCLUDE_DIR)
if(NOT TUTTI_CBLAS_INCLUDE_DIR)
  message(FATAL_ERROR "no cblas.h found (beside OpenBLAS, whose headers are in "
    "${OpenBLAS_INCLUDE_DIRS}); set TUTTI_CBLAS_INCLUDE_DIR")
endif()
add_library(tutti::blas INTERFACE IMPORTED GLOBAL)
target_include_directories(tutti::blas SYSTEM INTERFACE ${TUTTI_CBLAS_INCLUDE_DIR})
target_link_libraries(tutti::blas INTERFACE ${OpenBLAS_LIBRARIES})
