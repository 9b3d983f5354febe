// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Half-open intervals of sample positions, and how they are cut.
#pragma once

#include <cstdint>

namespace tutti {

/// Positions [begin, end) of the run's sample order; epoch e of n samples is [e n, (e+1) n).
struct Interval {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  /// Part k of `parts` nearly equal consecutive parts.
  Interval part(std::uint64_t k, std::uint64_t parts) const
  {
    return {begin + size() * k / parts, begin + size() * (k + 1) / parts};
  }
  bool operator==(const Interval&) const = default;
};

}  // namespace tutti
