// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How contributions and weights of CUDA ranks can travel with the libraries of this job.
#pragma once

#include <string>

namespace tutti {

/// Whether MPI reads and writes CUDA device memory: as the environment variable
/// TUTTI_GPU_AWARE_MPI=on|off says, otherwise as the MPI library says of itself. Callable before
/// MPI is started. Throws ConfigError for another value.
bool gpu_aware_mpi();

/// NCCL's version; empty in a build without TUTTI_ENABLE_NCCL.
std::string nccl_version();

}  // namespace tutti
