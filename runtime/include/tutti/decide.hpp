// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The only place where an attempt's fate is decided, and the only place where the control state
// moves. Pure functions, free of MPI, Kokkos and HDF5: all ranks call them with equal arguments and
// so agree.
#pragma once

#include <cstdint>
#include <span>

#include "tutti/ballot.hpp"
#include "tutti/control_state.hpp"
#include "tutti/policy.hpp"
#include "tutti/verdict.hpp"

namespace tutti {

/// The verdict on the summed ballot. Commit here still awaits `conclude`.
Verdict decide(const Ballot& ballot, const Policy& policy, const ControlState& state,
               Interval window);

/// The only verdict that is folded: `verdict` unless staging went wrong somewhere.
Verdict conclude(const Verdict& verdict, const Confirm& confirm, const Policy& policy,
                 const ControlState& state, Interval window);

/// The control state after an attempt, from the one before. `has_gradient`: per parameter, some
/// rank had one. Given as an rvalue with room (ControlState::make_room), it allocates nothing and
/// so cannot fail.
ControlState fold(ControlState state, const Verdict& verdict, const Policy& policy, Interval window,
                  std::span<const std::uint8_t> has_gradient);

/// The state that a run starts with.
ControlState initial_state(const Policy& policy, std::uint64_t epoch_samples);

/// How often this window was bad if `verdict` is for it, where that counts towards the repeat
/// limit; else 0.
std::uint64_t repeats(const ControlState& state, const Verdict& verdict, const Policy& policy,
                      Interval window);

/// Norm of the unscaled mean gradient: sqrt(sum of squares) x B / (N x scale), one rounding each.
double gradient_norm(const Ballot& ballot, double loss_scale, std::uint64_t nominal,
                     std::uint64_t samples);
/// min(1, max_norm / (norm + 1e-6)); 1 without clipping. A NaN norm gives NaN, never 1: it must not
/// get here.
double clip_factor(double norm, double max_norm);

}  // namespace tutti
