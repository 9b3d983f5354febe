// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti checkpoint ls | verify | diff | show`: looking into checkpoints. Results go to standard
// output, by rank 0 where there are several.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "agreement.hpp"

namespace tutti::apps {

struct CheckpointRequest {
  std::string action;              ///< "ls", "verify", "diff", "show"
  std::vector<std::string> paths;  ///< as many as the action takes
  bool json = false;               ///< of ls and show
};

/// Ends with ok when all is good or equal, error otherwise. Collective over `world`, where only
/// `verify` shares its work; MPI_COMM_NULL: this process alone, without MPI. Throws Refusal, or,
/// alone, the error itself.
ExitCode checkpoint_command(const CheckpointRequest& request, MPI_Comm world);

}  // namespace tutti::apps
