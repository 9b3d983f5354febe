// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/ballot.hpp"

#include <algorithm>

namespace tutti {
namespace {

/// One end (least or largest value) of two agreements, with the lowest rank and the count of its
/// holders.
void merge_end(std::uint64_t& value, std::uint32_t& rank, std::uint32_t& count,
               std::uint64_t other_value, std::uint32_t other_rank, std::uint32_t other_count,
               bool other_wins)
{
  if (other_wins) {
    value = other_value;
    rank = other_rank;
    count = other_count;
  } else if (value == other_value) {
    rank = std::min(rank, other_rank);
    count += other_count;
  }
}

}  // namespace

void Agreement::merge(const Agreement& other)
{
  merge_end(min, min_rank, min_count, other.min, other.min_rank, other.min_count, other.min < min);
  merge_end(max, max_rank, max_count, other.max, other.max_rank, other.max_count, other.max > max);
}

std::uint32_t Agreement::odd_rank() const
{
  if (min_count != max_count) return min_count < max_count ? min_rank : max_rank;
  return std::max(min_rank, max_rank);
}

void Ballot::merge(const Ballot& other)
{
  for (std::size_t field = 0; field < agreed.size(); ++field)
    agreed[field].merge(other.agreed[field]);
  participants += other.participants;
  samples += other.samples;
  nonfinite += other.nonfinite;
  nonfinite_state += other.nonfinite_state;
  nonfinite_losses += other.nonfinite_losses;
  stop_requests += other.stop_requests;
  replica_faults += other.replica_faults;
  replica = std::min(replica, other.replica);
  saves_pending += other.saves_pending;
  save_failure = std::min(save_failure, other.save_failure);
  largest_finite = std::max(largest_finite, other.largest_finite);
  sum_of_squares.add(other.sum_of_squares);
  loss.add(other.loss);
  offender = std::min(offender, other.offender);
  failure = std::min(failure, other.failure);
}

void Confirm::merge(const Confirm& other)
{
  attempt.merge(other.attempt);
  participants += other.participants;
  nonfinite += other.nonfinite;
  nonfinite_state += other.nonfinite_state;
  offender = std::min(offender, other.offender);
  failure = std::min(failure, other.failure);
}

}  // namespace tutti
