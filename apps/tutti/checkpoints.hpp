// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the trainer wants of checkpoints, in its own words: where one lies, how its run was configured, save, restore.
// The format and the way to disk are in io/.
#pragma once

#include <mpi.h>

#include <string>

#include "tutti/coordinator.hpp"

namespace tutti::apps {

/// The checkpoint that `resume` ("latest" in `folder`, or a file) means. Throws ConfigError if there is none. Rank 0
/// calls it.
std::string find_checkpoint(const std::string& resume, const std::string& folder);

/// Collective over `world`: the configuration text that the checkpoint holds; equal on all ranks.
std::string checkpoint_configuration(const std::string& path, MPI_Comm world);

/// Collective over the boundary's ranks: writes folder/step-NNNNNN.h5 and returns its path.
std::string save(const CommittedBoundary& boundary, const std::string& folder, const std::string& configuration);

/// Collective: fills the participants' arrays and continues the coordinator from the checkpoint.
void restore(const std::string& path, Coordinator& coordinator);

}  // namespace tutti::apps
