# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What `cmake --install` puts where, and how a consumer finds tutti: find_package(tutti) in an
# installed tree or in this build tree, add_subdirectory, or pkg-config. Included last: it exports
# what is there.
include(CMakePackageConfigHelpers)

set(_tutti_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
set(_tutti_build_dir ${PROJECT_BINARY_DIR}/lib/cmake/tutti)  # CMAKE_PREFIX_PATH=build finds it
set(_tutti_pc_libs "")
foreach(_part IN ITEMS tutti io runtime kernels)  # in link order, for the pkg-config file
  if(TARGET tutti_${_part})
    install(TARGETS tutti_${_part} EXPORT tuttiTargets
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    if(NOT _part STREQUAL "tutti")
      string(APPEND _tutti_pc_libs " -ltutti_${_part}")
    endif()
  endif()
  foreach(_base IN ITEMS ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})  # headers, generated too
    if(EXISTS ${_base}/${_part}/include)
      install(DIRECTORY ${_base}/${_part}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    endif()
  endforeach()
endforeach()
if(TARGET tutti)  # the command
  install(TARGETS tutti RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/slurm
  DESTINATION ${CMAKE_INSTALL_DATADIR}/tutti)  # templates: to be copied and changed

write_basic_package_version_file(${_tutti_build_dir}/tuttiConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
foreach(_file IN ITEMS tuttiConfig TuttiHighway TuttiKokkos TuttiXxhash TuttiHDF5)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${_file}.cmake ${_tutti_build_dir} COPYONLY)
endforeach()
install(DIRECTORY ${_tutti_build_dir}/ DESTINATION ${_tutti_cmake_dir}
  PATTERN tuttiTargets*.cmake EXCLUDE)
if(TARGET tutti_tutti)
  install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${_tutti_cmake_dir})
  export(EXPORT tuttiTargets NAMESPACE tutti:: FILE ${_tutti_build_dir}/tuttiTargets.cmake)
endif()

# pkg-config: tutti's libraries are static, so what they stand on is named by file. MPI comes from
# the compiler wrapper (mpicxx).
file(RELATIVE_PATH _tutti_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" _tutti_prefix "${_tutti_prefix}")
if(TARGET Kokkos::kokkoscore)
  set(_tutti_kokkos "$<TARGET_FILE:Kokkos::kokkoscore>")
else()
  set(_tutti_kokkos "${TUTTI_KOKKOS_TRILINOS_LIBRARY}")
endif()
set(_tutti_hdf5 ${HDF5_C_LIBRARIES})
list(FILTER _tutti_hdf5 INCLUDE REGEX "/")  # HDF5's own CMake package gives target names instead
if(NOT _tutti_hdf5)
  set(_tutti_hdf5 -lhdf5)
endif()
list(JOIN _tutti_hdf5 " " _tutti_hdf5)
set(_tutti_includes
  "$<TARGET_PROPERTY:tutti::kokkos,INTERFACE_INCLUDE_DIRECTORIES>" ${HDF5_C_INCLUDE_DIRS})
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/tutti.pc CONTENT
"prefix=\${pcfiledir}/${_tutti_prefix}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: tutti
Description: ${PROJECT_DESCRIPTION}
Version: ${PROJECT_VERSION}
Requires: fmt libhwy libxxhash
Cflags: -std=c++20 -I\${includedir} -I$<JOIN:${_tutti_includes}, -I>
Libs: -L\${libdir}${_tutti_pc_libs} ${_tutti_kokkos} ${_tutti_hdf5} -ldl -lpthread
")
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
