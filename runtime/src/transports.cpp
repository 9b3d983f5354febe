// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/transports.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <cstdlib>
#include <string_view>
// Open MPI's extensions; MPICH declares its own in mpi.h.
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include "nccl_channel.hpp"
#include "tutti/error.hpp"

namespace tutti {

bool gpu_aware_mpi()
{
  if (const char* const given = std::getenv("TUTTI_GPU_AWARE_MPI"); given != nullptr) {
    const std::string_view word = given;
    if (word == "on" || word == "off") return word == "on";
    throw ConfigError(fmt::format("TUTTI_GPU_AWARE_MPI={} is not known; use on or off", word));
  }
#if defined(MPIX_CUDA_AWARE_SUPPORT) || (defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40000000)
  int running = 0;
  MPI_Initialized(&running);
  if (running != 0) return MPIX_Query_cuda_support() == 1;
#endif
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_CUDA_AWARE_SUPPORT == 1;
#else
  return false;
#endif
}

std::string nccl_version() { return detail::NcclChannel::version(); }

}  // namespace tutti
