# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# hwy::hwy: Highway 1.0.3 or newer, by its CMake package or else by pkg-config (libhwy). Installed
# beside tuttiConfig.cmake, so it is also what a consumer runs.
find_package(hwy 1.0.3 CONFIG QUIET)
if(TARGET hwy::hwy)
  return()
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(TUTTI_HWY REQUIRED IMPORTED_TARGET libhwy>=1.0.3)
add_library(hwy::hwy INTERFACE IMPORTED GLOBAL)
target_link_libraries(hwy::hwy INTERFACE PkgConfig::TUTTI_HWY)
