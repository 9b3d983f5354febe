// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti bench step`: what a whole step boundary costs, against what memory can do in the same run.
#pragma once

#include <cstdint>
#include <string>

#include "agreement.hpp"
#include "options.hpp"

namespace tutti::apps {

struct BenchConfig {
  std::uint64_t elements = 32000000, steps = 10, model_parallel = 1, guard_blocks = 0;
  std::string precision = "fp16", wire = "auto", update = "staged", exchange = "ordered",
              shared_memory = "on";
  std::string rank_weights = "equal", summary;
  double max_norm = 1;
};

void declare(OptionTable& table, BenchConfig& config);

/// Collective over MPI_COMM_WORLD.
ExitCode bench_step(const BenchConfig& config);

}  // namespace tutti::apps
