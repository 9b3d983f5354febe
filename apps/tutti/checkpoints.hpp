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
  bool is_newest = false;            ///< of a folder: if it is damaged, an older one may do
};

/// Collective over `world`, equal on all ranks: the checkpoint that `which` means: "latest" or
/// "auto" in `folder`, another folder for the latest there, or a file. `passed_over`: the file that
/// was found before and whose payload turned out to be damaged; then the next older one is meant.
/// Throws Refusal on all ranks when there is none, or when it cannot be read. Only "auto" in a
/// folder without checkpoints, good or bad, gives an empty path: a new run.
FoundCheckpoint find_checkpoint(const std::string& which, const std::string& folder, MPI_Comm world,
                                const std::string& passed_over = {});

/// Collective over `world`: throws Refusal on all ranks when `folder` holds a complete checkpoint
/// of a later step than the run begins with, that of `begins_with` or 0. It is of another run:
/// saves of this one would replace its files or be taken for older ones, and `latest` would mean
/// either.
void refuse_used_folder(const std::string& folder, const std::string& begins_with, MPI_Comm world);

}  // namespace tutti::apps
