// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The control state: everything that steers a run besides its arrays. It is a fold over the
// sequence of verdicts (decide.hpp) and nothing else, so it is bit-equal on all ranks, and all of
// it is in a checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/ledger.hpp"
#include "tutti/verdict.hpp"

namespace tutti {

/// Step count and running products beta^t of one parameter. A parameter without gradient on all
/// ranks stands still, so each has its own.
struct ParameterClock {
  std::uint64_t steps = 0;
  double beta1_product = 1, beta2_product = 1;
  bool operator==(const ParameterClock&) const = default;
};

/// How often the window that begins at this position was found bad.
struct RepeatOffender {
  std::uint64_t begin = 0, count = 0;
  bool operator==(const RepeatOffender&) const = default;
};

/// Of the last `window` (at most 64) of all `attempts`, as many as there were, the share that was
/// skipped; `history` as in ControlState.
double skip_rate(std::uint64_t history, std::uint64_t attempts, std::uint64_t window);

struct ControlState {
  std::uint64_t step = 0;     ///< committed updates
  std::uint64_t attempt = 0;  ///< attempts made, committed or not
  double loss_scale = 1;
  std::uint64_t growth_tracker = 0;  ///< committed updates since the scale last moved
  std::uint64_t hysteresis = 1;      ///< overflows left before the scale backs off
  std::uint64_t consecutive_skips = 0;
  std::uint64_t samples = 0;  ///< committed samples: the schedule's position in samples
  std::uint64_t ema_updates = 0;
  std::array<std::uint64_t, reason_count> skips{};  ///< skipped attempts by Reason
  std::uint64_t skip_history = 0;  ///< the last 64 attempts, the newest in bit 0; 1: skipped
  SampleLedger ledger;
  std::vector<RepeatOffender> offenders;  ///< ascending begin
  std::vector<ParameterClock> clocks;     ///< all participants' parameters, in order
  std::uint64_t pending_save = 0;         ///< id of a background save in flight; 0: none

  double skip_rate(std::uint64_t window) const;
  /// Room for what one attempt adds: after it, fold (decide.hpp) allocates nothing.
  void make_room();
  std::uint64_t digest() const;
  bool operator==(const ControlState&) const = default;
};

/// JSON text that gives back the same bits (doubles as hexadecimal floats).
std::string to_json(const ControlState& state);
/// Throws CheckpointError on text that is not a control state.
ControlState control_state_from_json(const std::string& text);

}  // namespace tutti
