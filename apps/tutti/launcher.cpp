// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "launcher.hpp"

#include <unistd.h>

#include <cstdlib>

namespace tutti::apps {

std::optional<int> launched_rank()
{
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) return std::atoi(value);
  return std::nullopt;
}

long launcher_process() { return launched_rank() ? ::getppid() : 0; }

}  // namespace tutti::apps
