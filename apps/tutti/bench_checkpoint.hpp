// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti bench checkpoint`: what a save and a verified restore cost, against plain files of the
// same bytes in the same run.
#pragma once

#include <cstdint>
#include <string>

#include "agreement.hpp"
#include "options.hpp"

namespace tutti::apps {

struct CheckpointBenchConfig {
  std::uint64_t elements = 32000000, repeats = 5;
  std::string directory = ".", io = "mpiio", summary;
};

void declare(OptionTable& table, CheckpointBenchConfig& config);

/// Collective over MPI_COMM_WORLD. Makes a folder of its own in the directory and removes it.
ExitCode bench_checkpoint(const CheckpointBenchConfig& config);

}  // namespace tutti::apps
