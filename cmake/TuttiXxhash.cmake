# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::xxhash: xxHash 0.8 (XXH3), whose Debian package has no CMake configuration.
# Installed beside tuttiConfig.cmake, so it is also what a consumer runs.
# Sets TUTTI_LACKS to what is missing: an error of tutti's own build, but a consumer may do without
# tutti.
if(TARGET tutti::xxhash)
  return()
endif()
find_path(TUTTI_XXHASH_INCLUDE xxhash.h)
find_library(TUTTI_XXHASH_LIBRARY xxhash)
mark_as_advanced(TUTTI_XXHASH_INCLUDE TUTTI_XXHASH_LIBRARY)
if(NOT TUTTI_XXHASH_INCLUDE OR NOT TUTTI_XXHASH_LIBRARY)
  string(CONCAT TUTTI_LACKS "no xxHash found (xxhash.h or libxxhash is missing); "
    "install libxxhash-dev or add its prefix to CMAKE_PREFIX_PATH")
  return()
endif()
add_library(tutti::xxhash INTERFACE IMPORTED GLOBAL)
target_include_directories(tutti::xxhash SYSTEM INTERFACE ${TUTTI_XXHASH_INCLUDE})
target_link_libraries(tutti::xxhash INTERFACE ${TUTTI_XXHASH_LIBRARY})
