// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Learning-rate schedules as a factor on the base rate, by committed steps only.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

enum class ScheduleKind : std::uint8_t { constant, linear, cosine };

/// factor(s) = (s+1)/(warmup+1) while s < warmup; then 1 (constant), or a decay to `final_factor`
/// at `horizon`: linear, or cosine: final + (1 - final) (1 + cos(pi x)) / 2 (Loshchilov & Hutter
/// 2017, without restarts). The same bits on every machine: IEEE + - * / only.
struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::constant;
  std::uint64_t warmup = 0;
  std::uint64_t horizon = 0;  ///< committed steps; needed by linear and cosine
  double final_factor = 0;
  /// For the update that makes step `step` + 1.
  double factor(std::uint64_t step) const;
};

}  // namespace tutti
