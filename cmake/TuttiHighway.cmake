# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# hwy::hwy: Highway 1.0.3 or newer, by its CMake package or else by pkg-config (libhwy). Installed
# beside tuttiConfig.cmake, so it is also what a consumer runs.
# Sets TUTTI_LACKS to what is missing: an error of tutti's own build, but a consumer may do without
# tutti.
find_package(hwy 1.0.3 CONFIG QUIET)
if(TARGET hwy::hwy)
  return()
endif()
find_package(PkgConfig)
if(PkgConfig_FOUND)
  pkg_check_modules(TUTTI_HWY IMPORTED_TARGET libhwy>=1.0.3)
endif()
if(NOT TUTTI_HWY_FOUND)
  string(CONCAT TUTTI_LACKS "no Highway 1.0.3 or newer found (neither its CMake package hwy nor "
    "libhwy.pc); install libhwy-dev or add its prefix to CMAKE_PREFIX_PATH")
  return()
endif()
add_library(hwy::hwy INTERFACE IMPORTED GLOBAL)
target_link_libraries(hwy::hwy INTERFACE PkgConfig::TUTTI_HWY)
