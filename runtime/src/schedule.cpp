// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/schedule.hpp"

#include <algorithm>
#include <numbers>

namespace tutti {
namespace {

/// sin(pi x / 2) for x in [0, 1/2], within 2 ulp: the Taylor polynomial of degree 17, whose rest is
/// below 1e-19. Not the library's: that rounds differently on processors with and without fused
/// operations, and ranks on mixed nodes would disagree on the learning rate.
double sin_half_pi(double x)
{
  const double y = x * (std::numbers::pi / 2);
  const double y2 = y * y;
  double term = 1;  // of the nested form, from the inside
  for (const double n : {16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0})
    term = 1 - y2 / (n * (n + 1)) * term;
  return y * term;
}

/// (1 + cos(pi x)) / 2 for x in [0, 1].
double half_cosine(double x)
{
  const double s = sin_half_pi(std::min(x, 1 - x));
  return x <= 0.5 ? 1 - s * s : s * s;
}

}  // namespace

double LearningRateSchedule::factor(std::uint64_t step) const
{
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (kind == ScheduleKind::constant) return 1;
  const double span = horizon > warmup ? static_cast<double>(horizon - warmup) : 1.0;
  const double x = std::min(1.0, static_cast<double>(step - warmup) / span);
  const double remaining = kind == ScheduleKind::linear ? 1 - x : half_cosine(x);
  return final_factor + (1 - final_factor) * remaining;
}

}  // namespace tutti
