# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds Highway (1.0.3 or newer) as tutti::highway: by its CMake package, else by pkg-config.
find_package(hwy 1.0.3 CONFIG QUIET)
add_library(tutti_highway INTERFACE)
if(TARGET hwy::hwy)
  target_link_libraries(tutti_highway INTERFACE hwy::hwy)
else()
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(TUTTI_HWY REQUIRED IMPORTED_TARGET libhwy>=1.0.3)
  target_link_libraries(tutti_highway INTERFACE PkgConfig::TUTTI_HWY)
endif()
install(TARGETS tutti_highway EXPORT tuttiTargets)
add_library(tutti::highway ALIAS tutti_highway)
