// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Many virtual ranks in one process on the real state machine: every fault of every rank at every
// point, in every order of arrival. No two ranks ever hold different outcomes, all make the same
// sequence of collectives, and no state moves without Commit.
#include "tutti/step_machine.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "catch.hpp"

using namespace tutti;

namespace {

enum class Trouble { none, nonfinite, loss, drift, fail_before, fail_staging, bad_update };
constexpr Trouble troubles[] = {Trouble::none,      Trouble::nonfinite,   Trouble::loss,
                                Trouble::drift,     Trouble::fail_before, Trouble::fail_staging,
                                Trouble::bad_update};

struct VirtualRank {
  VirtualRank(const Policy& policy, const ControlState& control, std::uint32_t r, Trouble t)
      : state(control), machine(policy, state, control.ledger.window(8)), rank(r), trouble(t)
  {
    if (t == Trouble::drift) state.loss_scale *= 2;
  }
  VirtualRank(const VirtualRank&) = delete;

  Ballot ballot() const
  {
    Ballot b;
    for (auto& agreed : b.agreed) agreed = Agreement(0, rank);
    b.agreed[static_cast<std::size_t>(AgreedField::loss_scale)] =
        Agreement(static_cast<std::uint64_t>(state.loss_scale), rank);
    b.participants = 1;
    b.samples = 8;
    b.nonfinite = trouble == Trouble::nonfinite;
    b.nonfinite_losses = trouble == Trouble::loss;
    if (trouble == Trouble::fail_before)
      b.failure = {static_cast<std::uint32_t>(Phase::window), rank, 0};
    return b;
  }
  Confirm confirm() const
  {
    Confirm c;
    c.attempt = Agreement(state.attempt, rank);
    c.participants = trouble == Trouble::fail_staging ? 0 : 1;
    c.nonfinite = trouble == Trouble::bad_update;
    if (trouble == Trouble::fail_staging)
      c.failure = {static_cast<std::uint32_t>(Phase::stage), rank, 0};
    return c;
  }

  ControlState state;
  StepMachine machine;
  std::uint32_t rank;
  Trouble trouble;
  int published = 0, discarded = 0;
  std::vector<Action> collectives;
};

/// In-process transport: a collective completes when all ranks have arrived, in the given order.
template <class Record, class Contribution>
Record combined(std::vector<std::unique_ptr<VirtualRank>>& ranks,
                const std::vector<std::size_t>& order, Contribution contribution)
{
  Record sum = contribution(*ranks[order[0]]);
  for (std::size_t i = 1; i < order.size(); ++i) sum.merge(contribution(*ranks[order[i]]));
  return sum;
}

void run_step(std::vector<std::unique_ptr<VirtualRank>>& ranks,
              const std::vector<std::size_t>& order)
{
  while (ranks[0]->machine.action() != Action::done) {
    const Action action = ranks[0]->machine.action();
    for (auto& rank : ranks) {
      REQUIRE(rank->machine.action() ==
              action);  // all ranks issue the same collectives in the same order
      rank->collectives.push_back(action);
    }
    if (action == Action::vote) {
      const Ballot sum =
          combined<Ballot>(ranks, order, [](const VirtualRank& r) { return r.ballot(); });
      for (std::size_t i : order) ranks[i]->machine.voted(sum);
    } else if (action == Action::confirm) {
      const Confirm sum =
          combined<Confirm>(ranks, order, [](const VirtualRank& r) { return r.confirm(); });
      for (std::size_t i : order) ranks[i]->machine.confirmed(sum);
    } else {
      for (std::size_t i : order) {
        ranks[i]->published += action == Action::publish;
        ranks[i]->discarded += action == Action::discard;
        ranks[i]->machine.finished();
      }
    }
  }
}

}  // namespace

TEST_CASE("one outcome for every trouble on every rank in every order of arrival")
{
  for (UpdateMode mode : {UpdateMode::staged, UpdateMode::in_place})
    for (std::size_t size = 1; size <= 3; ++size) {
      Policy policy;
      policy.participants = size;
      policy.update = mode;
      policy.betas.resize(1);
      const ControlState start = initial_state(policy, 64);
      const std::vector<std::uint8_t> has = {1};
      std::size_t combinations = 1;
      for (std::size_t i = 0; i < size; ++i) combinations *= std::size(troubles);
      for (std::size_t code = 0; code < combinations; ++code) {
        std::vector<std::size_t> order(size);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::optional<Verdict> expected;
        do {
          std::vector<std::unique_ptr<VirtualRank>> ranks;
          bool any_trouble = false, all_drift = true;
          for (std::size_t i = 0, rest = code; i < size; ++i, rest /= std::size(troubles)) {
            const Trouble trouble = troubles[rest % std::size(troubles)];
            any_trouble |= trouble != Trouble::none;
            all_drift &= trouble == Trouble::drift;
            ranks.push_back(std::make_unique<VirtualRank>(policy, start,
                                                          static_cast<std::uint32_t>(i), trouble));
          }
          run_step(ranks, order);
          const Verdict& verdict = ranks[0]->machine.verdict();
          if (!expected) expected = verdict;
          REQUIRE(verdict == *expected);  // whatever the order of arrival
          const bool committed = verdict.kind == VerdictKind::commit;
          REQUIRE(committed == (!any_trouble || all_drift));
          for (auto& rank : ranks) {
            REQUIRE(rank->machine.verdict() == verdict);
            REQUIRE(rank->published == (committed ? 1 : 0));
            REQUIRE(rank->published + rank->discarded <= 1);
            REQUIRE(rank->collectives == ranks[0]->collectives);
            const ControlState after = rank->machine.fold(has);
            if (!committed) REQUIRE(after.step == rank->state.step);
            if (verdict.kind == VerdictKind::halt) REQUIRE(after == rank->state);
            const auto& ledger = after.ledger;
            std::uint64_t due = 0;
            for (Interval interval : ledger.replay) due += interval.size();
            REQUIRE(ledger.next == ledger.committed_samples() + ledger.dropped_samples() + due);
          }
        } while (std::next_permutation(order.begin(), order.end()));
      }
    }
}
