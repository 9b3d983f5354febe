# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds Kokkos 3.4 to 5.x as tutti::kokkos. Debian 12's package (3.4.01, from Trilinos) has a Kokkos::kokkos
# whose include folder does not exist, and no Kokkos::kokkoscore; headers and library are then named here.
find_package(Kokkos CONFIG REQUIRED)
find_path(TUTTI_KOKKOS_TRILINOS_INCLUDE Kokkos_Core.hpp PATH_SUFFIXES trilinos)
find_library(TUTTI_KOKKOS_TRILINOS_LIBRARY trilinos_kokkoscore)
mark_as_advanced(TUTTI_KOKKOS_TRILINOS_INCLUDE TUTTI_KOKKOS_TRILINOS_LIBRARY)
add_library(tutti_kokkos INTERFACE)
if(NOT TARGET Kokkos::kokkoscore AND TUTTI_KOKKOS_TRILINOS_INCLUDE AND TUTTI_KOKKOS_TRILINOS_LIBRARY)
  target_include_directories(tutti_kokkos SYSTEM INTERFACE ${TUTTI_KOKKOS_TRILINOS_INCLUDE})
  target_link_libraries(tutti_kokkos INTERFACE ${TUTTI_KOKKOS_TRILINOS_LIBRARY} ${CMAKE_DL_LIBS})
else()
  target_link_libraries(tutti_kokkos INTERFACE Kokkos::kokkos)
endif()
install(TARGETS tutti_kokkos EXPORT tuttiTargets)
add_library(tutti::kokkos ALIAS tutti_kokkos)
