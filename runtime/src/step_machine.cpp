// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/step_machine.hpp"

#include <stdexcept>
#include <utility>

namespace tutti {

void StepMachine::finished()
{
  switch (action_) {
    case Action::exchange:
      action_ = Action::vote;
      return;
    case Action::stage:
      action_ = Action::gather;
      return;
    case Action::gather:
      action_ = Action::confirm;
      return;
    case Action::publish:
    case Action::discard:
      action_ = Action::done;
      return;
    default:
      throw std::logic_error("StepMachine: this action ends with a vote");
  }
}

void StepMachine::voted(const Ballot& sum)
{
  if (action_ != Action::vote) throw std::logic_error("StepMachine: no vote is due");
  verdict_ = decide(sum, policy_, before_, window_);

  action_ = verdict_.kind == VerdictKind::commit ? Action::stage : Action::done;
}

void StepMachine::confirmed(const Confirm& sum)
{
  if (action_ != Action::confirm) throw std::logic_error("StepMachine: no confirm is due");
  verdict_ = conclude(verdict_, sum, policy_, before_, window_);
  action_ = verdict_.kind == VerdictKind::commit ? Action::publish : Action::discard;
}

ControlState StepMachine::fold(ControlState state, std::span<const std::uint8_t> has_gradient) const
{
  if (action_ != Action::done) return state;
  return tutti::fold(std::move(state), verdict_, policy_, window_, has_gradient);
}

}  // namespace tutti
