// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/decide.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tutti/digest.hpp"

namespace tutti {
namespace {

Verdict skip(Reason reason, bool back_off) { return {VerdictKind::skip, reason, {}, 0, back_off}; }
Verdict halt(Reason reason, std::uint32_t rank = 0)
{
  return {VerdictKind::halt, reason, {}, rank, false};
}
Verdict mismatch(AgreedField field, std::uint32_t rank)
{
  return {VerdictKind::halt, Reason::control_mismatch, field, rank, false};
}

/// An overflow under dynamic loss scaling is the scaler's business. Everything else that is bad
/// about a window would be as bad the next time, so it counts towards the repeat limit.
bool counts_as_repeat(Reason reason, const Policy& policy)
{
  return !(policy.scaling.enabled && reason == Reason::gradient);
}

std::uint64_t times_bad(const ControlState& state, Interval window)
{
  for (const RepeatOffender& offender : state.offenders)
    if (offender.begin == window.begin) return offender.count;
  return 0;
}

bool at_minimum(const LossScaling& scaling, double scale)
{
  return scaling.enabled && scaling.minimum > 0 && scale <= scaling.minimum;
}

std::uint64_t history_after(const ControlState& state, bool skipped)
{
  return state.skip_history << 1 | (skipped ? 1u : 0u);
}

/// Skip for `reason`, unless this skip is one too many. The order of the tests is the precedence of
/// the reasons.
Verdict skip_or_halt(Reason reason, const Policy& policy, const ControlState& state,
                     Interval window)
{
  const bool overflow = policy.scaling.enabled && reason == Reason::gradient;
  if (policy.repeat_limit != 0 && counts_as_repeat(reason, policy) &&
      times_bad(state, window) + 1 >= policy.repeat_limit)
    return halt(Reason::repeat_limit);
  if (overflow && at_minimum(policy.scaling, state.loss_scale)) return halt(Reason::minimum_scale);
  if (policy.max_consecutive_skips != 0 &&
      state.consecutive_skips + 1 >= policy.max_consecutive_skips)
    return halt(Reason::consecutive_skips);
  if (policy.max_skip_rate > 0 && state.attempt + 1 >= policy.skip_window &&
      skip_rate(history_after(state, true), state.attempt + 1, policy.skip_window) >
          policy.max_skip_rate)
    return halt(Reason::skip_rate);
  return skip(reason, overflow);
}

void grow(ControlState& state, const LossScaling& scaling)
{
  if (!scaling.enabled || ++state.growth_tracker < scaling.growth_interval) return;
  double scale = state.loss_scale * scaling.growth_factor;
  if (scaling.maximum > 0) scale = std::min(scale, scaling.maximum);
  // As GradScaler: a scale that fp32 cannot hold is not taken.
  if (std::isfinite(static_cast<float>(scale))) state.loss_scale = scale;
  state.growth_tracker = 0;
  state.hysteresis = scaling.hysteresis;
}

void back_off(ControlState& state, const LossScaling& scaling)
{
  state.growth_tracker = 0;
  if (state.hysteresis > 1) {
    --state.hysteresis;
    return;
  }
  state.loss_scale = std::max(state.loss_scale * scaling.backoff_factor, scaling.minimum);
}

void forget_offender(ControlState& state, Interval window)
{
  std::erase_if(state.offenders,
                [&](const RepeatOffender& offender) { return offender.begin == window.begin; });
}

void remember_offender(ControlState& state, Interval window)
{
  auto at = std::lower_bound(
      state.offenders.begin(), state.offenders.end(), window.begin,
      [](const RepeatOffender& offender, std::uint64_t begin) { return offender.begin < begin; });
  if (at == state.offenders.end() || at->begin != window.begin)
    at = state.offenders.insert(at, {window.begin, 0});
  ++at->count;
}

}  // namespace

Verdict decide(const Ballot& ballot, const Policy& policy, const ControlState& state,
               Interval window)
{
  for (std::size_t field = 0; field < ballot.agreed.size(); ++field)
    if (!ballot.agreed[field].agreed())
      return mismatch(static_cast<AgreedField>(field), ballot.agreed[field].odd_rank());
  if (ballot.participants != policy.participants) return mismatch(AgreedField::participants, 0);
  if (ballot.replica.exists())
    return halt(Reason::replica_mismatch, static_cast<std::uint32_t>(ballot.replica.rank));
  if (ballot.failure.exists()) return halt(Reason::window_failed, ballot.failure.rank);
  if (ballot.nonfinite_state != 0) return halt(Reason::nonfinite_state, ballot.offender.rank);
  if (ballot.nonfinite != 0) return skip_or_halt(Reason::gradient, policy, state, window);
  if (ballot.nonfinite_losses != 0) return skip_or_halt(Reason::loss, policy, state, window);
  return {};
}

Verdict conclude(const Verdict& verdict, const Confirm& confirm, const Policy& policy,
                 const ControlState& state, Interval window)
{
  if (verdict.kind != VerdictKind::commit) return verdict;
  const bool in_place = policy.update == UpdateMode::in_place;
  if (!confirm.attempt.agreed()) return mismatch(AgreedField::attempt, confirm.attempt.odd_rank());
  if (confirm.failure.exists())
    return halt(in_place ? Reason::partial_update : Reason::update_failed, confirm.failure.rank);
  if (confirm.participants != policy.participants)
    return in_place ? halt(Reason::partial_update) : mismatch(AgreedField::participants, 0);
  if (confirm.nonfinite == 0) return verdict;
  if (confirm.nonfinite_state != 0) return halt(Reason::nonfinite_state, confirm.offender.rank);
  if (in_place) return halt(Reason::partial_update, confirm.offender.rank);
  return skip_or_halt(Reason::update, policy, state, window);
}

ControlState fold(ControlState state, const Verdict& verdict, const Policy& policy, Interval window,
                  std::span<const std::uint8_t> has_gradient)
{
  if (verdict.kind == VerdictKind::halt) return state;
  state.skip_history = history_after(state, verdict.kind == VerdictKind::skip);
  ++state.attempt;
  if (verdict.kind == VerdictKind::commit) {
    ++state.step;
    state.samples += window.size();
    state.consecutive_skips = 0;
    if (policy.ema) ++state.ema_updates;
    for (std::size_t p = 0; p < state.clocks.size(); ++p) {
      if (!has_gradient[p]) continue;
      ParameterClock& clock = state.clocks[p];
      ++clock.steps;
      clock.beta1_product *= policy.betas[p].beta1;
      clock.beta2_product *= policy.betas[p].beta2;
    }
    grow(state, policy.scaling);
    forget_offender(state, window);
    state.ledger.commit(window);
    return state;
  }
  ++state.consecutive_skips;
  ++state.skips[static_cast<std::size_t>(verdict.reason)];
  if (verdict.back_off) back_off(state, policy.scaling);
  if (policy.samples == SamplePolicy::drop) {
    forget_offender(state, window);
    state.ledger.drop(window);
  } else {
    if (counts_as_repeat(verdict.reason, policy)) remember_offender(state, window);
    state.ledger.keep_for_replay(window);
  }
  return state;
}

ControlState initial_state(const Policy& policy, std::uint64_t epoch_samples)
{
  ControlState state;
  state.loss_scale = policy.scaling.enabled ? policy.scaling.initial : 1;
  state.hysteresis = policy.scaling.hysteresis;
  state.ledger.epoch_samples = epoch_samples;
  state.clocks.resize(policy.betas.size());
  return state;
}

std::uint64_t repeats(const ControlState& state, const Verdict& verdict, const Policy& policy,
                      Interval window)
{
  const bool window_is_bad =
      verdict.kind == VerdictKind::skip || verdict.reason == Reason::repeat_limit;
  return window_is_bad && counts_as_repeat(verdict.reason, policy) ? times_bad(state, window) + 1
                                                                   : 0;
}

double gradient_norm(const Ballot& ballot, double loss_scale, std::uint64_t nominal,
                     std::uint64_t samples)
{
  return std::sqrt(ballot.sum_of_squares.value()) *
         (static_cast<double>(nominal) / static_cast<double>(samples)) / loss_scale;
}

double clip_factor(double norm, double max_norm)
{
  if (max_norm <= 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 ? 1 : factor;  // NaN is neither >= 1 nor replaced
}

std::uint64_t Policy::hash() const
{
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  std::uint64_t h = hash_of("tutti policy 1");
  for (std::uint64_t word : {std::uint64_t{scaling.enabled},
                             bits(scaling.initial),
                             bits(scaling.growth_factor),
                             bits(scaling.backoff_factor),
                             scaling.growth_interval,
                             scaling.hysteresis,
                             bits(scaling.minimum),
                             bits(scaling.maximum),
                             static_cast<std::uint64_t>(samples),
                             static_cast<std::uint64_t>(update),
                             bits(max_norm),
                             max_consecutive_skips,
                             repeat_limit,
                             bits(max_skip_rate),
                             skip_window,
                             digest_every,
                             participants,
                             std::uint64_t{ema},
                             static_cast<std::uint64_t>(schedule.kind),
                             schedule.warmup,
                             schedule.horizon,
                             bits(schedule.final_factor)})
    h = mix64(h, word);
  for (const Betas& beta : betas) h = mix64(mix64(h, bits(beta.beta1)), bits(beta.beta2));
  return h;
}

}  // namespace tutti
