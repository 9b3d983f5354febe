// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A window whose gradients or loss were bad, computed once more: was it a passing error, that
// machine, or the data? It changes no outcome; it is a part of the incident.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tutti/interval.hpp"

namespace tutti {

/// The caller's own forward and backward pass: puts the gradients of the samples at `positions`
/// (may be empty) where those of a window's micro-batch go, times `gradient_scale`, and returns the
/// sum of the samples' losses. Must give the same bits for the same positions on every rank of the
/// same CoordinatorOptions::arithmetic. Called for each micro-batch of the window on all ranks of
/// two data-parallel groups, so what it does with its model-parallel peers must be done before it
/// throws; other ranks take no part. It may throw: then there is no result, and the incident says
/// why.
using RecomputeSource = std::function<double(Interval positions, double gradient_scale)>;

/// What a data-parallel group contributed to a window, or came to when computing it again.
struct Contribution {
  std::uint64_t digest = 0;  ///< of gradients and losses, equal for equal bits
  bool finite = false;
  bool operator==(const Contribution&) const = default;
};

enum class Cause : std::uint8_t {
  unknown,    ///< not computed again, or what was seen proves nothing
  transient,  ///< it does not come again, and the rank agrees with the other one
  machine,    ///< that rank comes to something else than another rank
  data        ///< another rank comes to the same: samples, weights or loss scale
};
std::string_view name_of(Cause cause);

struct Recomputation {
  Cause cause = Cause::unknown;
  std::uint32_t rank = 0;   ///< whose window it was
  std::uint32_t other = 0;  ///< that of the next data-parallel group; `rank` where there is none
  bool comparable = false;  ///< both compute in the same way, so that their bits can be compared
  bool finite = false, other_finite = false;
  bool repeats = false;  ///< `rank` came to the bits that it had contributed
  bool agrees = false;   ///< `other` came to the same bits as `rank` this time
  std::string failure;   ///< why there is no result; empty: there is one
  bool operator==(const Recomputation&) const = default;
};

/// Sets finite, other_finite, repeats, agrees and cause from what was contributed at first, again,
/// and by the other rank; rank, other and comparable are given. A pure function.
void classify(Recomputation& result, const Contribution& first, const Contribution& again,
              const Contribution& elsewhere);

/// One sentence for people.
std::string explain(const Recomputation& result);

}  // namespace tutti
