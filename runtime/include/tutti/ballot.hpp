// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The two all-integer records of a step and how they combine. Merging is associative and
// commutative, so the sum over ranks does not depend on the order of a reduction. Votes are
// integers: no floating-point MAX.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tutti/exact_sum.hpp"
#include "tutti/verdict.hpp"

namespace tutti {

/// One field that must agree: its least and largest value over the ranks, the lowest rank that
/// holds each, and how many do, so that a disagreement names the odd one out.
struct Agreement {
  std::uint64_t min = 0, max = 0;
  std::uint32_t min_rank = 0, max_rank = 0;
  std::uint32_t min_count = 1, max_count = 1;
  Agreement() = default;
  Agreement(std::uint64_t value, std::uint32_t rank)
      : min(value), max(value), min_rank(rank), max_rank(rank)
  {
  }
  void merge(const Agreement& other);
  bool agreed() const { return min == max; }
  /// The rank of the rarer value; at a tie of the value that is not held by the lower rank.
  std::uint32_t odd_rank() const;
  bool operator==(const Agreement&) const = default;
};

/// How a rank's part of a background save stands.
enum class SaveState : std::uint8_t { none, pending, done, failed };
struct SaveReport {
  SaveState state = SaveState::none;
  std::int64_t code = 0;  ///< errno of a failure; 0 where it was not the system's
};

/// Whether a loss is one to add up: finite, and in the range of the exact sum.
inline bool is_finite_loss(double loss) { return std::abs(loss) <= 1e90; }  // false for NaN

/// What each rank contributes before anything is mutated. A record of 8-byte words; `Ballot` over
/// all ranks is the summed ballot.
struct Ballot {
  std::array<Agreement, agreed_fields - 1> agreed;  ///< by AgreedField, without participants
  std::uint64_t participants = 0;                   ///< sum
  std::uint64_t samples = 0;    ///< sum over data-parallel ranks (model-parallel rank 0 votes)
  std::uint64_t nonfinite = 0;  ///< sum: nonfinite gradient elements seen
  std::uint64_t nonfinite_state = 0;   ///< sum: owned state elements found nonfinite
  std::uint64_t nonfinite_losses = 0;  ///< sum: ranks whose own loss was nonfinite
  std::uint64_t stop_requests = 0;     ///< sum
  std::uint64_t replica_faults = 0;    ///< sum: blocks of copies of the weights that are wrong
  std::uint64_t saves_pending = 0;     ///< sum: ranks whose background save is not on disk yet
  Failure save_failure;                ///< min: of a background save; says nothing about the update
  std::uint64_t largest_finite =
      0;                    ///< max: bits of the largest finite gradient magnitude, still scaled
  ExactSum sum_of_squares;  ///< of the summed, still scaled gradients
  ExactSum loss;            ///< sum over samples (model-parallel rank 0 votes)
  Offender offender;        ///< min
  ReplicaFault replica;     ///< min
  Failure failure;          ///< min
  void merge(const Ballot& other);
  bool operator==(const Ballot&) const = default;
};

/// What each rank contributes after staging.
struct Confirm {
  Agreement attempt;
  std::uint64_t participants = 0;  ///< sum: participants that staged and received a complete update
  std::uint64_t nonfinite = 0;     ///< sum: staged elements that are nonfinite
  std::uint64_t nonfinite_state = 0;  ///< sum: of them, those whose old state was nonfinite already
  Offender offender;                  ///< min
  Failure failure;                    ///< min
  void merge(const Confirm& other);
  bool operator==(const Confirm&) const = default;
};

static_assert(sizeof(Ballot) % 8 == 0 && sizeof(Confirm) % 8 == 0);

}  // namespace tutti
