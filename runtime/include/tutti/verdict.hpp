// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The vocabulary of decisions: verdicts, their reasons, and where a value first went nonfinite.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace tutti {

enum class VerdictKind : std::uint8_t { commit, skip, halt };

/// Why an attempt was not committed. The first three are reasons to skip, the others to halt. Which
/// of several wins is in decide.cpp; the numbers stand in checkpoints, so new ones go to the end.
enum class Reason : std::uint8_t {
  none,
  gradient,          ///< skip: a nonfinite gradient
  loss,              ///< skip: a nonfinite loss with finite gradients
  update,            ///< skip: the staged update holds a nonfinite value
  control_mismatch,  ///< ranks disagree on what must agree
  window_failed,     ///< a failure on some rank before the decision (user code, exchange)
  update_failed,     ///< a failure on some rank while staging, gathering or confirming; nothing was
                     ///< mutated
  partial_update,    ///< the same during an in-place update: some state was mutated
  nonfinite_state,   ///< optimizer state is nonfinite
  repeat_limit,      ///< the same samples were bad repeat_limit times
  minimum_scale,     ///< overflow at the minimum loss scale
  consecutive_skips,  ///< max_consecutive_skips reached
  skip_rate,          ///< more of the last attempts were skipped than max_skip_rate allows
  replica_mismatch,   ///< a copy of the weights is not what their owner wrote
};
inline constexpr std::size_t reason_count = 14;
std::string_view name_of(Reason reason);

/// Where in the way of a gradient a value first went nonfinite; earlier stages win.
enum class Stage : std::uint8_t {
  loss,
  micro_batch,
  accumulation,
  exchange,
  unscale,
  clip,
  update,
  state
};
std::string_view name_of(Stage stage);

/// Phases of a step, of what may follow a bad one, then of a save, in which a rank can fail, stall
/// or die.
enum class Phase : std::uint8_t {
  window,
  exchange,
  ballot,
  stage,
  gather,
  confirm,
  publish,        ///< of a step: nothing can fail here, but a rank can die
  recompute,      ///< the window of a bad attempt is computed again, to tell its cause
  save_prepare,   ///< what is saved is looked at, agreed on, and its file created
  save_payload,   ///< each rank writes its blocks
  save_sync,      ///< and makes them durable
  save_complete,  ///< one rank adds tables, texts and certificate
  save_publish,   ///< one rank gives the file its name
  save_pointer,   ///< and turns `latest` to it
  save_retain,    ///< and removes older ones
};
inline constexpr std::size_t phase_count = 15;
std::string_view name_of(Phase phase);

/// What the ranks must agree on; the fields of Halt(control_mismatch).
enum class AgreedField : std::uint8_t {
  step,
  attempt,
  loss_scale,
  learning_rate,
  configuration,
  shard_plan,
  control_state,
  participants
};
inline constexpr std::size_t agreed_fields = 8;
std::string_view name_of(AgreedField field);

/// The first nonfinite value, in the fixed order of its members (so all ranks pick the same). All
/// integers: it travels in the ballot.
struct Offender {
  std::uint32_t stage = ~0u;      ///< Stage; ~0u: there is none
  std::uint32_t micro = 0;        ///< micro-batch of the window; ~0u where it is not known
  std::uint32_t participant = 0;  ///< index of the optimizer
  std::uint32_t parameter = ~0u;  ///< index in its ParameterSet; ~0u for a loss
  std::uint64_t element = 0;      ///< global element index
  std::uint32_t rank = 0;         ///< world rank whose contribution (or update) it is
  std::uint32_t value_bits = 0;   ///< as fp32
  std::uint64_t count = 0;        ///< nonfinite elements that this rank reports
  bool exists() const { return stage != ~0u; }
  auto operator<=>(const Offender&) const = default;
};

/// The first block of a copy of the weights that is not what its owner wrote, in the order of the
/// members.
struct ReplicaFault {
  std::uint32_t participant = ~0u;  ///< ~0u: there is none
  std::uint32_t parameter = 0;
  std::uint64_t element = 0;  ///< global index of the block's first element
  std::uint64_t block = 0;    ///< of the parameter's piece on that rank
  std::uint64_t rank = 0;     ///< world rank in whose memory the copy lies
  bool exists() const { return participant != ~0u; }
  auto operator<=>(const ReplicaFault&) const = default;
};

/// The first failure, in the order of its members.
struct Failure {
  std::uint32_t phase = ~0u;  ///< Phase; ~0u: none
  std::uint32_t rank = 0;
  std::int64_t code = 0;  ///< ErrorCode, or what window.fail() was given
  bool exists() const { return phase != ~0u; }
  auto operator<=>(const Failure&) const = default;
};

/// A pure function of the summed ballot, the policy and the control state.
struct Verdict {
  VerdictKind kind = VerdictKind::commit;
  Reason reason = Reason::none;
  AgreedField field = AgreedField::step;  ///< for control_mismatch
  std::uint32_t rank = 0;                 ///< for mismatch and failure: the rank it comes from
  bool back_off = false;                  ///< the loss scaler sees an overflow
  bool operator==(const Verdict&) const = default;
};

}  // namespace tutti
