# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::blas: OpenBLAS with cblas.h and openblas_set_num_threads, for the reference trainer only.
# OpenBLAS' own CMake configuration sets variables and no target, and in Debian unstable they name
# folders that are not there: they are hints only.
include_guard(GLOBAL)
find_package(OpenBLAS CONFIG QUIET)
find_path(TUTTI_CBLAS_INCLUDE_DIR NAMES cblas.h HINTS ${OpenBLAS_INCLUDE_DIRS}
  PATH_SUFFIXES openblas openblas-pthread)
find_library(TUTTI_OPENBLAS_LIBRARY NAMES openblas HINTS ${OpenBLAS_LIBRARY_DIR}
  PATH_SUFFIXES openblas-pthread)
mark_as_advanced(TUTTI_CBLAS_INCLUDE_DIR TUTTI_OPENBLAS_LIBRARY)
if(NOT TUTTI_CBLAS_INCLUDE_DIR OR NOT TUTTI_OPENBLAS_LIBRARY)
  message(FATAL_ERROR "no OpenBLAS found (cblas.h: ${TUTTI_CBLAS_INCLUDE_DIR}, libopenblas: "
    "${TUTTI_OPENBLAS_LIBRARY}); install libopenblas-dev, or give -DTUTTI_ENABLE_APPS=OFF to build "
    "the library alone")
endif()
add_library(tutti::blas INTERFACE IMPORTED GLOBAL)
target_include_directories(tutti::blas SYSTEM INTERFACE ${TUTTI_CBLAS_INCLUDE_DIR})
target_link_libraries(tutti::blas INTERFACE ${TUTTI_OPENBLAS_LIBRARY})
