// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which intervals of sample positions were committed, dropped on purpose, or are due for replay.
// Pure: it moves only by verdicts. Cutting a window among today's ranks is Interval::part.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/interval.hpp"

namespace tutti {

/// The sample ledger. Invariant: [0, next) is the disjoint union of committed, dropped and replay.
struct SampleLedger {
  std::uint64_t epoch_samples = 0;  ///< samples of one epoch; 0: the run has no finite epoch
  std::uint64_t next = 0;           ///< first position never presented
  std::vector<Interval> replay;     ///< due before anything new, oldest first, each presented whole
  std::vector<Interval> committed;  ///< merged, ascending
  std::vector<Interval> dropped;    ///< merged, ascending

  /// The interval of the next attempt: the oldest one due for replay, whole; else up to `samples`
  /// new positions, cut at the end of the epoch.
  Interval window(std::uint64_t samples) const;
  void commit(Interval interval);
  void drop(Interval interval);
  /// The interval stays due, and keeps its place in front.
  void keep_for_replay(Interval interval);

  std::uint64_t committed_samples() const;
  std::uint64_t dropped_samples() const;
  std::uint64_t digest() const;
  bool operator==(const SampleLedger&) const = default;
};

}  // namespace tutti
