# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::xxhash: xxHash 0.8 (XXH3), whose Debian package has no CMake configuration.
# Installed beside tuttiConfig.cmake, so it is also what a consumer runs.
include_guard(GLOBAL)
find_path(TUTTI_XXHASH_INCLUDE xxhash.h)
find_library(TUTTI_XXHASH_LIBRARY xxhash)
mark_as_advanced(TUTTI_XXHASH_INCLUDE TUTTI_XXHASH_LIBRARY)
if(NOT TUTTI_XXHASH_INCLUDE OR NOT TUTTI_XXHASH_LIBRARY)
  message(FATAL_ERROR "no xxHash found (xxhash.h or libxxhash is missing); "
    "install libxxhash-dev or add its prefix to CMAKE_PREFIX_PATH")
endif()
add_library(tutti::xxhash INTERFACE IMPORTED GLOBAL)
target_include_directories(tutti::xxhash SYSTEM INTERFACE ${TUTTI_XXHASH_INCLUDE})
target_link_libraries(tutti::xxhash INTERFACE ${TUTTI_XXHASH_LIBRARY})
