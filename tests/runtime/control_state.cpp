// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sample ledger's invariant under random verdicts, and the control state's text form, bit for
// bit.
#include "tutti/control_state.hpp"

#include <random>

#include "catch.hpp"
#include "tutti/decide.hpp"
#include "tutti/error.hpp"

using namespace tutti;

TEST_CASE("every position below `next` is committed, dropped or due for replay, exactly once")
{
  std::mt19937_64 random(2);
  for (int run = 0; run < 50; ++run) {
    SampleLedger ledger;
    ledger.epoch_samples = random() % 2 ? 37 : 0;
    for (int attempt = 0; attempt < 200; ++attempt) {
      const Interval window = ledger.window(10);
      REQUIRE(window.size() >= 1);
      REQUIRE(window.size() <= 10);
      if (ledger.epoch_samples)
        REQUIRE(window.begin / ledger.epoch_samples == (window.end - 1) / ledger.epoch_samples);
      switch (random() % 3) {
        case 0:
          ledger.commit(window);
          break;
        case 1:
          ledger.drop(window);
          break;
        case 2:
          ledger.keep_for_replay(window);
          REQUIRE(ledger.window(10) == window);  // presented again, whole, before anything new
          break;
      }
      std::vector<int> seen(ledger.next, 0);
      for (const auto* list : {&ledger.committed, &ledger.dropped, &ledger.replay})
        for (Interval interval : *list)
          for (auto p = interval.begin; p < interval.end; ++p) ++seen.at(p);
      for (int count : seen) REQUIRE(count == 1);
    }
  }
}

TEST_CASE("a window replayed on another number of ranks is cut anew and stays whole")
{
  const Interval window{10, 23};
  for (std::uint64_t ranks = 1; ranks <= 16; ++ranks)
    for (std::uint64_t micros = 1; micros <= 4; ++micros) {
      std::uint64_t at = window.begin;
      for (std::uint64_t d = 0; d < ranks; ++d)
        for (std::uint64_t w = 0; w < micros; ++w) {
          const Interval part = window.part(d, ranks).part(w, micros);
          REQUIRE(part.begin == at);
          at = part.end;
        }
      REQUIRE(at == window.end);
    }
}

TEST_CASE("the control state comes back from its text with the same bits")
{
  ControlState state;
  state.step = 3;
  state.attempt = 5;
  state.loss_scale = 0.1;
  state.growth_tracker = 7;
  state.hysteresis = 2;
  state.consecutive_skips = 1;
  state.samples = 1ull << 60;
  state.ema_updates = 4;
  state.skips[1] = 9;
  state.skips[12] = 1;
  state.skip_history = 0x8000000000000001;
  state.ledger.epoch_samples = 100;
  state.ledger.next = 60;
  state.ledger.commit({0, 20});
  state.ledger.drop({30, 40});
  state.ledger.keep_for_replay({20, 30});
  state.offenders = {{20, 2}};
  state.clocks = {{3, 0.9 * 0.9 * 0.9, 0.997002999}, {0, 1, 1}};
  const ControlState back = control_state_from_json(to_json(state));
  REQUIRE(back == state);
  REQUIRE(back.digest() == state.digest());
}

TEST_CASE("a control state that cannot be read is a CheckpointError")
{
  REQUIRE_THROWS_AS(control_state_from_json("{"), CheckpointError);
  REQUIRE_THROWS_AS(control_state_from_json("{\"step\": 1}"), CheckpointError);
  REQUIRE_THROWS_AS(control_state_from_json(""), CheckpointError);
}

TEST_CASE("every field of the control state is in its digest")
{
  const Policy policy = [] {
    Policy p;
    p.betas.resize(1);
    return p;
  }();
  const ControlState base = initial_state(policy, 100);
  std::vector<ControlState> changed(16, base);
  changed[0].step = 1;
  changed[1].attempt = 1;
  changed[2].loss_scale = 2;
  changed[3].growth_tracker = 1;
  changed[4].hysteresis = 9;
  changed[5].consecutive_skips = 1;
  changed[6].samples = 1;
  changed[7].ema_updates = 1;
  changed[8].skips[2] = 1;
  changed[9].ledger.next = 1;
  changed[10].ledger.replay = {{0, 1}};
  changed[11].offenders = {{0, 1}};
  changed[12].clocks[0].beta2_product = 0.5;
  changed[13].pending_save = 1;
  changed[14].skip_history = 1;
  changed[15].skips[13] = 1;
  for (const ControlState& state : changed) REQUIRE(state.digest() != base.digest());
}
