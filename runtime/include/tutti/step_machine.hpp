// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The protocol of one step as a state machine without I/O: it says what to do next, is told what
// came of it, and holds the verdict. The coordinator drives it over MPI; tests drive many of them
// in one process.
#pragma once

#include <span>

#include "tutti/decide.hpp"

namespace tutti {

/// What the driver does next. On every path all ranks are told the same sequence of collective
/// actions.
enum class Action : std::uint8_t {
  exchange,  ///< collective: contributions meet; local: scan them
  vote,      ///< collective: combine the ballots
  stage,     ///< local: compute the update beside the state
  gather,    ///< collective: new weights reach their users
  confirm,   ///< collective: combine the confirms
  publish,   ///< local: the staged update becomes the state
  discard,   ///< local: the staged update is forgotten
  done,
};

class StepMachine {
 public:
  /// `policy` and `before` must outlive it.
  StepMachine(const Policy& policy, const ControlState& before, Interval window)
      : policy_(policy), before_(before), window_(window)
  {
  }

  Action action() const { return action_; }
  /// The verdict so far; final when action() is publish, discard or done.
  const Verdict& verdict() const { return verdict_; }

  /// The present action (neither vote nor confirm) is finished, failed or not.
  void finished();
  void voted(const Ballot& sum);
  void confirmed(const Confirm& sum);

  /// The control state after the step, from a copy of `before`; that copy unless the step is done.
  ControlState fold(ControlState state, std::span<const std::uint8_t> has_gradient) const;

 private:
  const Policy& policy_;
  const ControlState& before_;
  Interval window_;
  Action action_ = Action::exchange;
  Verdict verdict_;
};

}  // namespace tutti
