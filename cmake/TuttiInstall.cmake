# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What `cmake --install` puts where, and how a consumer finds tutti: find_package(tutti) in an
# installed tree or in this build tree, add_subdirectory, or pkg-config. Included last: it exports
# what is there.
include(CMakePackageConfigHelpers)

set(_tutti_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
set(_tutti_build_dir ${PROJECT_BINARY_DIR}/lib/cmake/tutti)  # CMAKE_PREFIX_PATH=build finds it
set(_tutti_pc_libs "")
foreach(_part IN ITEMS tutti fortran c io runtime kernels)  # in link order, for pkg-config
  if(TARGET tutti_${_part})
    install(TARGETS tutti_${_part} EXPORT tuttiTargets
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    if(NOT _part MATCHES "^(tutti|fortran|c)$")
      string(APPEND _tutti_pc_libs " -ltutti_${_part}")
    endif()
  endif()
endforeach()
foreach(_folder IN ITEMS interfaces io runtime kernels)
  foreach(_base IN ITEMS ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})  # headers, generated too
    if(EXISTS ${_base}/${_folder}/include)
      install(DIRECTORY ${_base}/${_folder}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    endif()
  endforeach()
endforeach()
if(TARGET tutti_fortran)
  install(DIRECTORY $<TARGET_PROPERTY:tutti_fortran,Fortran_MODULE_DIRECTORY>/
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/modules)
endif()
if(TARGET tutti)  # the command
  file(RELATIVE_PATH _tutti_lib_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(tutti PROPERTIES INSTALL_RPATH "$ORIGIN/${_tutti_lib_from_bin}")
  install(TARGETS tutti RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_BINARY_DIR}/apps/tutti.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/slurm
  DESTINATION ${CMAKE_INSTALL_DATADIR}/tutti)  # templates: to be copied and changed

write_basic_package_version_file(${_tutti_build_dir}/tuttiConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in
  ${_tutti_build_dir}/tuttiConfig.cmake @ONLY)
foreach(_file IN ITEMS TuttiHighway TuttiKokkos TuttiXxhash TuttiHDF5 TuttiNccl)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${_file}.cmake ${_tutti_build_dir} COPYONLY)
endforeach()
install(DIRECTORY ${_tutti_build_dir}/ DESTINATION ${_tutti_cmake_dir}
  PATTERN tuttiTargets*.cmake EXCLUDE)
if(TARGET tutti_tutti)
  install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${_tutti_cmake_dir})
  export(EXPORT tuttiTargets NAMESPACE tutti:: FILE ${_tutti_build_dir}/tuttiTargets.cmake)
endif()

# pkg-config: what tutti's libraries stand on is named by file, for they may be static. MPI comes
# from the compiler wrapper: `mpicxx $(pkg-config --cflags --libs tutti)`, mpicc with tutti_c, and
# mpifort with tutti_fortran.
file(RELATIVE_PATH _tutti_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" _tutti_prefix "${_tutti_prefix}")
if(TARGET Kokkos::kokkoscore)
  set(_tutti_kokkos "$<TARGET_FILE:Kokkos::kokkoscore>")
else()
  set(_tutti_kokkos "${TUTTI_KOKKOS_TRILINOS_LIBRARY}")
endif()
if(TARGET OpenMP::OpenMP_CXX)  # Kokkos's
  string(APPEND _tutti_kokkos
    " $<JOIN:$<TARGET_PROPERTY:OpenMP::OpenMP_CXX,INTERFACE_LINK_LIBRARIES>, >")
endif()
set(_tutti_hdf5 "")
foreach(_library IN LISTS HDF5_C_LIBRARIES)
  if(TARGET ${_library})  # of HDF5's own CMake package
    list(APPEND _tutti_hdf5 $<TARGET_FILE:${_library}>)
  elseif(_library MATCHES "/")
    list(APPEND _tutti_hdf5 ${_library})
  endif()
endforeach()
if(NOT _tutti_hdf5)
  set(_tutti_hdf5 -lhdf5)
endif()
list(JOIN _tutti_hdf5 " " _tutti_hdf5)
set(_tutti_cuda "")
if(TUTTI_ENABLE_NCCL)
  list(APPEND _tutti_cuda ${TUTTI_NCCL_LIBRARY})
endif()
if(TUTTI_ENABLE_CUDA)
  list(APPEND _tutti_cuda $<TARGET_FILE:CUDA::cudart> $<TARGET_FILE:CUDA::cuda_driver>)
endif()
list(JOIN _tutti_cuda " " _tutti_cuda)
set(_tutti_includes
  "$<TARGET_PROPERTY:tutti::kokkos,INTERFACE_INCLUDE_DIRECTORIES>" ${HDF5_C_INCLUDE_DIRS})
set(_tutti_system_libs
  "${_tutti_kokkos} ${_tutti_cuda} ${_tutti_hdf5} -ldl -lpthread -lstdc++ -lm")
function(tutti_pkg_config name description cflags libs)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${name}.pc CONTENT
"prefix=\${pcfiledir}/${_tutti_prefix}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: ${name}
Description: ${description}
Version: ${PROJECT_VERSION}
Requires: fmt libhwy libxxhash
Cflags: ${cflags}
Libs: -L\${libdir} ${libs}${_tutti_pc_libs} ${_tutti_system_libs}
")
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
tutti_pkg_config(tutti "${PROJECT_DESCRIPTION}"
  "-std=c++20 -I\${includedir} -I$<JOIN:${_tutti_includes}, -I>" "")
tutti_pkg_config(tutti_c "${PROJECT_DESCRIPTION} (C interface)" "-I\${includedir}" "-ltutti_c")
if(TARGET tutti_fortran)
  tutti_pkg_config(tutti_fortran "${PROJECT_DESCRIPTION} (Fortran module)"
    "-I\${includedir}/tutti/modules" "-ltutti_fortran -ltutti_c")
endif()
