// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a run has decided beforehand. All ranks hold the same policy; its hash is agreed in every
// ballot.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/schedule.hpp"

namespace tutti {

enum class SamplePolicy : std::uint8_t { replay, drop };
enum class UpdateMode : std::uint8_t { staged, in_place };

/// Dynamic loss scaling: PyTorch GradScaler's defaults and meaning, plus hysteresis (Megatron) and
/// bounds.
struct LossScaling {
  bool enabled = false;
  double initial = 65536;
  double growth_factor = 2, backoff_factor = 0.5;
  std::uint64_t growth_interval = 2000;
  std::uint64_t hysteresis = 1;
  double minimum = 0;  ///< 0: none
  double maximum = 0;  ///< 0: none
};

struct Policy {
  LossScaling scaling;
  SamplePolicy samples = SamplePolicy::replay;
  UpdateMode update = UpdateMode::staged;
  double max_norm = 0;  ///< of the unscaled mean gradient over all participants; 0: no clipping
  std::uint64_t max_consecutive_skips = 50;  ///< 0: no limit
  std::uint64_t repeat_limit = 3;            ///< 0: no limit
  /// Halt when more than this share of the last `skip_window` attempts was skipped (fp16 runs go on
  /// after an overflow; this bounds how often). Looked at once so many were made. 0: no limit.
  double max_skip_rate = 0;
  std::uint64_t skip_window = 64;  ///< 1 to 64
  /// Committed updates between two checks of the weights' copies against their owners'; 0: none.
  std::uint64_t digest_every = 0;
  std::uint64_t participants = 1;  ///< agreed: ranks x optimizers
  bool ema = false;

  /// beta1, beta2 of each parameter of each participant: what the clocks advance by.
  struct Betas {
    double beta1 = 0.9, beta2 = 0.999;
  };
  std::vector<Betas> betas;
  LearningRateSchedule schedule;

  std::uint64_t hash() const;
};

}  // namespace tutti
