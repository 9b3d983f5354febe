# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::kokkos: Kokkos 3.4 to 5.x. Debian 12's package (3.4.01, from Trilinos) has a Kokkos::kokkos
# whose include folder does not exist; its headers and library are then named here. Installed beside
# tuttiConfig.cmake, so it is also what a consumer runs; there TUTTI_BUILT_WITH_KOKKOS_DIR is the
# Kokkos of tutti's own build, taken before the system's.
# Sets TUTTI_LACKS to what is missing: an error of tutti's own build, but a consumer may do without
# tutti.
find_package(Kokkos CONFIG HINTS ${TUTTI_BUILT_WITH_KOKKOS_DIR})
if(NOT Kokkos_FOUND)
  string(CONCAT TUTTI_LACKS "no Kokkos found (its CMake package is missing); install "
    "libtrilinos-kokkos-dev or give -DKokkos_ROOT=<its prefix>")
  return()
endif()
if(TARGET tutti::kokkos)
  return()
endif()
add_library(tutti::kokkos INTERFACE IMPORTED GLOBAL)
find_path(TUTTI_KOKKOS_TRILINOS_INCLUDE Kokkos_Core.hpp PATH_SUFFIXES trilinos)
find_library(TUTTI_KOKKOS_TRILINOS_LIBRARY trilinos_kokkoscore)
mark_as_advanced(TUTTI_KOKKOS_TRILINOS_INCLUDE TUTTI_KOKKOS_TRILINOS_LIBRARY)
if(NOT TARGET Kokkos::kokkoscore
   AND TUTTI_KOKKOS_TRILINOS_INCLUDE AND TUTTI_KOKKOS_TRILINOS_LIBRARY)
  target_include_directories(tutti::kokkos SYSTEM INTERFACE ${TUTTI_KOKKOS_TRILINOS_INCLUDE})
  target_link_libraries(tutti::kokkos INTERFACE
    ${TUTTI_KOKKOS_TRILINOS_LIBRARY} ${CMAKE_DL_LIBS})
else()
  target_link_libraries(tutti::kokkos INTERFACE Kokkos::kokkos)
endif()
