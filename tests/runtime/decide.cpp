// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// decide() and conclude() over every combination of what a small ballot can say, against a table of
// reasons in order of precedence; and fold(): what each verdict may move, and nothing else.
#include "tutti/decide.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "catch.hpp"
#include "tutti/digest.hpp"

using namespace tutti;

namespace {

constexpr Interval window{40, 50};

Policy base_policy()
{
  Policy policy;
  policy.participants = 4;
  policy.repeat_limit = 3;
  policy.max_consecutive_skips = 5;
  policy.betas.resize(2);
  return policy;
}

Ballot good_ballot()
{
  Ballot ballot;
  for (auto& agreed : ballot.agreed) agreed = Agreement(7, 0);
  ballot.participants = 4;
  ballot.samples = 10;
  return ballot;
}

Failure failure_on(std::uint32_t rank)
{
  Failure failure;
  failure.phase = static_cast<std::uint32_t>(Phase::exchange);
  failure.rank = rank;
  return failure;
}

/// What is wrong, in order of precedence; the first one that holds gives the verdict.
struct Case {
  bool holds;
  VerdictKind kind;
  Reason reason;
};

void check_first(const Verdict& verdict, const std::vector<Case>& cases)
{
  for (const Case& c : cases)
    if (c.holds) {
      REQUIRE(verdict.kind == c.kind);
      REQUIRE(verdict.reason == c.reason);
      return;
    }
  REQUIRE(verdict == Verdict{});
}

}  // namespace

TEST_CASE("decide gives the first reason in order of precedence, over all small ballots")
{
  int commits = 0, all = 0;
  for (int odd = -1; odd < static_cast<int>(agreed_fields) - 1; ++odd)
    for (int bits = 0; bits < 1 << 9; ++bits) {
      const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
      const bool absent = bit(0), failed = bit(1), bad_state = bit(2), bad_gradient = bit(3),
                 bad_loss = bit(4), scaling = bit(5), minimum = bit(6), repeated = bit(7),
                 streak = bit(8);
      Policy policy = base_policy();
      policy.scaling.enabled = scaling;
      policy.scaling.minimum = 8;
      ControlState state = initial_state(policy, 100);
      state.loss_scale = minimum ? 8 : 16;
      state.consecutive_skips = streak ? 4 : 3;
      state.offenders = {{window.begin, repeated ? 2u : 1u}};
      Ballot ballot = good_ballot();
      if (odd >= 0) ballot.agreed[static_cast<std::size_t>(odd)].merge(Agreement(8, 3));
      if (absent) ballot.participants = 3;
      if (failed) ballot.failure = failure_on(2);
      ballot.nonfinite_state = bad_state;
      ballot.nonfinite = bad_gradient;
      ballot.nonfinite_losses = bad_loss;

      const bool bad = bad_gradient || bad_loss;
      const bool overflow = bad_gradient && scaling;
      const Verdict verdict = decide(ballot, policy, state, window);
      using enum VerdictKind;
      check_first(verdict, {{odd >= 0 || absent, halt, Reason::control_mismatch},
                            {failed, halt, Reason::window_failed},
                            {bad_state, halt, Reason::nonfinite_state},
                            {bad && !overflow && repeated, halt, Reason::repeat_limit},
                            {overflow && minimum, halt, Reason::minimum_scale},
                            {bad && streak, halt, Reason::consecutive_skips},
                            {bad_gradient, skip, Reason::gradient},
                            {bad_loss, skip, Reason::loss}});
      if (odd >= 0) {
        REQUIRE(verdict.field == static_cast<AgreedField>(odd));
        REQUIRE(verdict.rank == 3);
      }
      if (verdict.kind == skip) REQUIRE(verdict.back_off == overflow);
      REQUIRE(decide(ballot, policy, state, window) == verdict);  // pure
      commits += verdict.kind == commit;
      ++all;
    }
  REQUIRE(all == 8 * 512);
  REQUIRE(commits == 16);  // nothing wrong, whatever the limits stand at
}

TEST_CASE("conclude lets Commit through only if every participant staged a finite update")
{
  for (int bits = 0; bits < 1 << 7; ++bits) {
    const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
    const bool drifted = bit(0), failed = bit(1), absent = bit(2), nonfinite = bit(3),
               was_bad = bit(4), in_place = bit(5), repeated = bit(6);
    Policy policy = base_policy();
    policy.update = in_place ? UpdateMode::in_place : UpdateMode::staged;
    ControlState state = initial_state(policy, 100);
    if (repeated) state.offenders = {{window.begin, 2}};
    Confirm confirm;
    confirm.attempt = Agreement(1, 0);
    if (drifted) confirm.attempt.merge(Agreement(2, 1));
    if (failed) confirm.failure = failure_on(1);
    confirm.participants = absent ? 3 : 4;
    confirm.nonfinite = nonfinite;
    confirm.nonfinite_state = nonfinite && was_bad;
    using enum VerdictKind;
    const Verdict verdict = conclude({}, confirm, policy, state, window);
    check_first(verdict,
                {{drifted, halt, Reason::control_mismatch},
                 {failed, halt, in_place ? Reason::partial_update : Reason::update_failed},
                 {absent, halt, in_place ? Reason::partial_update : Reason::control_mismatch},
                 {nonfinite && was_bad, halt, Reason::nonfinite_state},
                 {nonfinite && in_place, halt, Reason::partial_update},
                 {nonfinite && repeated, halt, Reason::repeat_limit},
                 {nonfinite, skip, Reason::update}});
    REQUIRE_FALSE(verdict.back_off);
    const Verdict skipped{VerdictKind::skip, Reason::gradient, {}, 0, true};
    REQUIRE(conclude(skipped, confirm, policy, state, window) == skipped);
  }
}

TEST_CASE("a skip moves neither step, schedule, clocks nor EMA")
{
  Policy policy = base_policy();
  policy.ema = true;
  ControlState state = initial_state(policy, 100);
  const std::vector<std::uint8_t> has = {1, 1};
  for (Reason reason : {Reason::gradient, Reason::loss, Reason::update}) {
    const ControlState after =
        fold(state, {VerdictKind::skip, reason, {}, 0, false}, policy, window, has);
    REQUIRE(after.attempt == state.attempt + 1);
    REQUIRE(after.step == state.step);
    REQUIRE(after.samples == state.samples);
    REQUIRE(after.ema_updates == state.ema_updates);
    REQUIRE(after.clocks == state.clocks);
    REQUIRE(after.loss_scale == state.loss_scale);
    REQUIRE(after.skips[static_cast<std::size_t>(reason)] == 1);
  }
}

TEST_CASE("a parameter without gradient on all ranks keeps its own clock")
{
  const Policy policy = base_policy();
  const ControlState state = initial_state(policy, 100);
  const std::vector<std::uint8_t> has = {1, 0};
  const ControlState after = fold(state, {}, policy, window, has);
  REQUIRE(after.clocks[0].steps == 1);
  REQUIRE(after.clocks[0].beta1_product == 0.9);
  REQUIRE(after.clocks[0].beta2_product == 0.999);
  REQUIRE(after.clocks[1] == ParameterClock{});
}

TEST_CASE("a halt leaves the control state as it was")
{
  const Policy policy = base_policy();
  const ControlState state = initial_state(policy, 100);
  const std::vector<std::uint8_t> has = {1, 1};
  for (Reason reason : {Reason::control_mismatch, Reason::update_failed, Reason::repeat_limit})
    REQUIRE(fold(state, {VerdictKind::halt, reason, {}, 0, false}, policy, window, has) == state);
}

TEST_CASE("the scaler backs off at an overflow, grows after the interval, and keeps its bounds")
{
  Policy policy = base_policy();
  policy.max_consecutive_skips = 0;
  policy.scaling.enabled = true;
  policy.scaling.initial = 1024;
  policy.scaling.growth_interval = 3;
  policy.scaling.maximum = 2048;
  policy.scaling.minimum = 512;
  const std::vector<std::uint8_t> has = {1, 1};
  const Verdict overflow{VerdictKind::skip, Reason::gradient, {}, 0, true};
  ControlState state = initial_state(policy, 100);
  for (int i = 0; i < 2; ++i) state = fold(state, {}, policy, window, has);
  REQUIRE(state.loss_scale == 1024);
  state = fold(state, {}, policy, window, has);
  REQUIRE(state.loss_scale == 2048);
  for (int i = 0; i < 3; ++i) state = fold(state, {}, policy, window, has);
  REQUIRE(state.loss_scale == 2048);  // maximum
  state = fold(state, {}, policy, window, has);
  state = fold(state, overflow, policy, window, has);
  REQUIRE(state.loss_scale == 1024);
  REQUIRE(state.growth_tracker == 0);
  for (int i = 0; i < 3; ++i) state = fold(state, overflow, policy, window, has);
  REQUIRE(state.loss_scale == 512);  // minimum
}

TEST_CASE("hysteresis swallows that many overflows but one")
{
  Policy policy = base_policy();
  policy.scaling.enabled = true;
  policy.scaling.initial = 1024;
  policy.scaling.hysteresis = 3;
  const std::vector<std::uint8_t> has = {1, 1};
  const Verdict overflow{VerdictKind::skip, Reason::gradient, {}, 0, true};
  ControlState state = initial_state(policy, 100);
  for (double expected : {1024.0, 1024.0, 512.0, 256.0}) {
    state = fold(state, overflow, policy, window, has);
    REQUIRE(state.loss_scale == expected);
  }
}

TEST_CASE("growth never makes a scale that fp32 cannot hold")
{
  Policy policy = base_policy();
  policy.scaling.enabled = true;
  policy.scaling.initial = std::ldexp(1.0, 127);
  policy.scaling.growth_interval = 1;
  const std::vector<std::uint8_t> has = {1, 1};
  ControlState state = initial_state(policy, 100);
  state = fold(state, {}, policy, window, has);
  REQUIRE(state.loss_scale == std::ldexp(1.0, 127));
}

TEST_CASE("a replayed bad window is bounded, and named only by its own samples")
{
  Policy policy = base_policy();
  policy.repeat_limit = 3;
  const std::vector<std::uint8_t> has = {1, 1};
  ControlState state = initial_state(policy, 100);
  Ballot bad = good_ballot();
  bad.nonfinite = 1;
  for (int i = 0; i < 2; ++i) {
    const Interval again = state.ledger.window(10);
    REQUIRE(again == Interval{0, 10});
    const Verdict verdict = decide(bad, policy, state, again);
    REQUIRE(verdict.kind == VerdictKind::skip);
    state = fold(state, verdict, policy, again, has);
  }
  REQUIRE(decide(bad, policy, state, state.ledger.window(10)).reason == Reason::repeat_limit);
  // When it passes after all, its record is forgotten.
  state = fold(state, {}, policy, state.ledger.window(10), has);
  REQUIRE(state.offenders.empty());
  REQUIRE(state.ledger.window(10) == Interval{10, 20});
}

TEST_CASE("clipping: 1 up to the norm, less above it, and NaN stays NaN")
{
  REQUIRE(clip_factor(0.5, 0) == 1);
  REQUIRE(clip_factor(0.5, 1) == 1);
  REQUIRE(clip_factor(4, 1) == 1 / (4 + 1e-6));
  REQUIRE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1)));
  REQUIRE(clip_factor(4, 1) * 4 <= 1);
}

TEST_CASE("schedules: warm-up, then constant, linear or cosine, by committed steps")
{
  LearningRateSchedule schedule;
  schedule.warmup = 4;
  REQUIRE(schedule.factor(0) == 0.2);
  REQUIRE(schedule.factor(3) == 0.8);
  REQUIRE(schedule.factor(4) == 1);
  REQUIRE(schedule.factor(1000) == 1);
  schedule.kind = ScheduleKind::linear;
  schedule.horizon = 14;
  schedule.final_factor = 0.1;
  REQUIRE(schedule.factor(4) == 1);
  REQUIRE(std::abs(schedule.factor(9) - 0.55) < 1e-15);
  REQUIRE(std::abs(schedule.factor(14) - 0.1) < 1e-15);
  REQUIRE(schedule.factor(100) == schedule.factor(14));
  schedule.kind = ScheduleKind::cosine;
  REQUIRE(std::abs(schedule.factor(9) - 0.55) < 1e-15);
  REQUIRE(schedule.factor(6) > 0.9);
}

TEST_CASE("the cosine schedule is the cosine, and has the same bits on every machine")
{
  LearningRateSchedule schedule;
  schedule.kind = ScheduleKind::cosine;
  schedule.horizon = 100000;
  std::uint64_t bits = 0;
  double before = 1;
  for (std::uint64_t step = 0; step <= schedule.horizon; ++step) {
    const double x = static_cast<double>(step) / 100000;
    const double factor = schedule.factor(step);
    REQUIRE(std::abs(factor - (1 + std::cos(std::numbers::pi * x)) / 2) <= 4e-16);
    REQUIRE(factor <= before);
    before = factor;
    bits = mix64(bits, std::bit_cast<std::uint64_t>(factor));
  }
  REQUIRE(schedule.factor(0) == 1);
  REQUIRE(schedule.factor(schedule.horizon) == 0);
  REQUIRE(bits == 0xdb66b33ca3567474);
}

TEST_CASE("more skips among the last attempts than allowed halt, once so many were made")
{
  Policy policy = base_policy();
  policy.scaling.enabled = true;
  policy.max_consecutive_skips = 0;
  policy.max_skip_rate = 0.25;
  policy.skip_window = 8;
  ControlState state = initial_state(policy, 0);
  const std::vector<std::uint8_t> has = {1, 1};
  Ballot bad = good_ballot();
  bad.nonfinite = 1;
  const auto attempt = [&](const Ballot& ballot) {
    const Verdict verdict = decide(ballot, policy, state, window);
    state = fold(state, verdict, policy, window, has);
    return verdict;
  };
  for (int i = 0; i < 7; ++i) CHECK(attempt(bad).kind == VerdictKind::skip);  // too few to judge
  CHECK(state.skip_history == 0x7f);
  CHECK(state.skip_rate(8) == 1);
  const ControlState before = state;
  CHECK(attempt(bad).reason == Reason::skip_rate);
  CHECK(state == before);
  for (int i = 0; i < 7; ++i) CHECK(attempt(good_ballot()).kind == VerdictKind::commit);
  CHECK(attempt(bad).kind == VerdictKind::skip);  // 1 of 8
  CHECK(attempt(bad).kind == VerdictKind::skip);  // 2 of 8: as much as is allowed
  CHECK(attempt(bad).reason == Reason::skip_rate);
  CHECK(state.skip_rate(8) == 0.25);
  CHECK(state.skip_rate(64) == static_cast<double>(9) / 16);
}

TEST_CASE("a wrong replica halts before what was computed with it counts")
{
  const Policy policy = base_policy();
  const ControlState state = initial_state(policy, 0);
  Ballot ballot = good_ballot();
  ballot.replica = {1, 2, 0, 3, 2};
  ballot.replica_faults = 1;
  ballot.nonfinite = ballot.nonfinite_state = 5;
  ballot.failure = failure_on(0);
  const Verdict verdict = decide(ballot, policy, state, window);
  CHECK(verdict.kind == VerdictKind::halt);
  CHECK(verdict.reason == Reason::replica_mismatch);
  CHECK(verdict.rank == 2);
  ballot.agreed[2] = Agreement(8, 1);
  ballot.agreed[2].merge(Agreement(7, 0));
  CHECK(decide(ballot, policy, state, window).reason == Reason::control_mismatch);
}
