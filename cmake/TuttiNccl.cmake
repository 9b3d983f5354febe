# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# tutti::nccl: NCCL 2.10 or newer with the CUDA runtime, which has no CMake configuration. Installed
# beside tuttiConfig.cmake, so it is also what a consumer runs.
# Sets TUTTI_LACKS to what is missing: an error of tutti's own build, but a consumer may do without
# tutti.
if(TARGET tutti::nccl)
  return()
endif()
find_package(CUDAToolkit)
find_path(TUTTI_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME
  PATH_SUFFIXES include)
find_library(TUTTI_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_HOME
  PATH_SUFFIXES lib lib64)
mark_as_advanced(TUTTI_NCCL_INCLUDE TUTTI_NCCL_LIBRARY)
if(NOT CUDAToolkit_FOUND OR NOT TUTTI_NCCL_INCLUDE OR NOT TUTTI_NCCL_LIBRARY)
  string(CONCAT TUTTI_LACKS
    "no NCCL found (nccl.h, libnccl or the CUDA toolkit is missing); install it, "
    "add its prefix to CMAKE_PREFIX_PATH, or give -DTUTTI_ENABLE_NCCL=OFF")
  return()
endif()
add_library(tutti::nccl INTERFACE IMPORTED GLOBAL)
target_include_directories(tutti::nccl SYSTEM INTERFACE ${TUTTI_NCCL_INCLUDE})
target_link_libraries(tutti::nccl INTERFACE ${TUTTI_NCCL_LIBRARY} CUDA::cudart)
