// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The reference trainer: a tensor-parallel classifier on Fashion-MNIST whose every update goes
// through the coordinator.
#pragma once

#include "agreement.hpp"
#include "train_config.hpp"

namespace tutti::apps {

/// Collective over MPI_COMM_WORLD: the whole run, from the checked options to the summary. Throws
/// Refusal on all ranks when it cannot run; returns ExitCode::halted when the policy ended it.
/// `quiet`: nothing is printed but why it cannot run.
ExitCode train(OptionTable& table, TrainConfig& config, bool quiet = false);

}  // namespace tutti::apps
