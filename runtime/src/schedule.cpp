// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tutti {

double LearningRateSchedule::factor(std::uint64_t step) const
{
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (kind == ScheduleKind::constant) return 1;
  const double span = horizon > warmup ? static_cast<double>(horizon - warmup) : 1.0;
  const double x = std::min(1.0, static_cast<double>(step - warmup) / span);
  const double remaining =
      kind == ScheduleKind::linear ? 1 - x : (1 + std::cos(std::numbers::pi * x)) / 2;
  return final_factor + (1 - final_factor) * remaining;
}

}  // namespace tutti
