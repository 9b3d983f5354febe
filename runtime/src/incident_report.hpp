// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How an incident is made from a bad verdict: which rank knows most of it, what all ranks know, and
// what only that one does. The coordinator puts them together; the record is in incident.hpp.
#pragma once

#include <string>
#include <vector>

#include "tutti/coordinator.hpp"

namespace tutti::detail {

/// What an attempt came to, besides its outcome. Equal on all ranks but for the last two.
struct Circumstances {
  const Topology& topology;
  const std::vector<Participant*>& participants;
  const CoordinatorOptions& options;
  const ControlState& control;  ///< before the attempt
  const Ballot& ballot;         ///< summed
  const Window& window;
  std::uint64_t samples = 1;  ///< that were presented
  const std::string& checkpoint;
  std::uint64_t checkpoint_step = 0;
  std::string failure;               ///< of this rank, if it failed
  std::vector<double> micro_losses;  ///< of this rank, mean of each micro-batch

  /// By what a summed, scaled gradient is multiplied.
  double unscale(double loss_scale) const
  {
    return static_cast<double>(options.window_samples) / static_cast<double>(samples) / loss_scale;
  }
};

/// The rank that knows most of what the verdict is about; the same on all ranks.
int speaker(const Circumstances& at, const Outcome& outcome);

/// What all ranks know, and of a failure its text on the rank that failed; without a message.
Incident known_to_all(const Circumstances& at, const Outcome& outcome);

/// What only the speaker knows, from the gradients that are still there; throws what the
/// participants or the evidence throw.
void add_own_facts(const Circumstances& at, const Outcome& outcome, Incident& incident,
                   std::vector<NamedArray>& arrays);

/// One sentence for people.
std::string message_of(const Circumstances& at, const Outcome& outcome, const Incident& incident);

}  // namespace tutti::detail
