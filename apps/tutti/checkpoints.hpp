// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the trainer must know of a checkpoint before it can build what the checkpoint is restored
// into: where it lies and how its run was configured. Saving and restoring are in io/.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

namespace tutti::apps {

struct FoundCheckpoint {
  std::string path;
  std::string configuration;         ///< JSON text, as it was saved
  std::vector<std::string> refused;  ///< a line for each newer file that was passed over
};

/// Collective over `world`, equal on all ranks: the checkpoint that `which` ("latest" or "auto" in
/// `folder`, or a file) means. `passed_over`: the file that was found before and whose payload
/// turned out to be damaged; then the next older one is meant. Throws Refusal on all ranks when
/// there is none, or when it cannot be read. Only "auto" in a folder without checkpoints, good or
/// bad, gives an empty path: a new run.
FoundCheckpoint find_checkpoint(const std::string& which, const std::string& folder, MPI_Comm world,
                                const std::string& passed_over = {});

}  // namespace tutti::apps
