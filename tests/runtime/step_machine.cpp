// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A model checker: many virtual ranks in one process on the real state machine, decision, scaler
// and ledger. Every fault of one rank, and every pair of faults of two, at every point of two
// attempts, with every order of arrival at every collective. No two ranks ever hold different
// outcomes for one attempt, no state moves without Commit, and consumed = committed + dropped.
//
// Local work of different ranks commutes, so an interleaving is told from another only by the order
// in which ranks arrive at collectives. Each collective is therefore made in all n! orders and must
// give the same sum, bit for bit; going on from one of them then covers all.
#include "tutti/step_machine.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "catch.hpp"

using namespace tutti;

namespace {

/// What can befall a rank in an attempt.
enum class Trouble {
  none,
  nonfinite_gradient,
  nonfinite_state,
  nonfinite_loss,
  stale_step,  // its control state is not the others'
  other_scale,
  missing_participant,
  fail_window,
  fail_exchange,
  fail_stage,
  fail_gather,
  unconfirmed_participant,
  nonfinite_update,
  nonfinite_old_state,
  die_before_exchange,
  die_before_vote,
  die_before_stage,
  die_before_gather,
  die_before_confirm,
  die_before_publish,
};
constexpr int trouble_count = 20;

struct Fault {
  std::size_t rank = 0;
  int attempt = 0;
  Trouble trouble = Trouble::none;
};

Action dies_before(Trouble trouble)
{
  switch (trouble) {
    case Trouble::die_before_exchange:
      return Action::exchange;
    case Trouble::die_before_vote:
      return Action::vote;
    case Trouble::die_before_stage:
      return Action::stage;
    case Trouble::die_before_gather:
      return Action::gather;
    case Trouble::die_before_confirm:
      return Action::confirm;
    case Trouble::die_before_publish:
      return Action::publish;
    default:
      return Action::done;
  }
}

/// One rank of the job: what it holds is its control state, and how many updates its weights have
/// seen (in place: also how many were begun).
struct VirtualRank {
  ControlState control;
  std::uint64_t published = 0, mutated = 0;
  bool dead = false;
  std::vector<Action> collectives;
  std::vector<Verdict> verdicts;
};

class Job {
 public:
  Job(const Policy& policy, std::size_t size, std::vector<Fault> faults)
      : policy_(policy), ranks_(size), faults_(std::move(faults))
  {
    for (VirtualRank& rank : ranks_) rank.control = initial_state(policy, 64);
  }

  /// One attempt of all ranks; false when the job is over (halted, or somebody is dead).
  bool attempt(int number)
  {
    attempt_ = number;
    const Interval window = ranks_[0].control.ledger.window(8);
    std::vector<std::unique_ptr<StepMachine>> machines;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      VirtualRank& rank = ranks_[r];
      if (has(r, Trouble::stale_step)) --rank.control.step;
      if (has(r, Trouble::other_scale)) rank.control.loss_scale *= 2;
      machines.push_back(std::make_unique<StepMachine>(policy_, rank.control, window));
    }
    std::vector<VirtualRank> before = ranks_;
    while (machines[0]->action() != Action::done) {
      const Action action = machines[0]->action();
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        REQUIRE(machines[r]->action() == action);  // the same collectives in the same order
        ranks_[r].collectives.push_back(action);
        if (dies_before(trouble(r)) == action) ranks_[r].dead = true;
      }
      const bool somebody_died =
          std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.dead; });
      const bool collective = action == Action::exchange || action == Action::vote ||
                              action == Action::gather || action == Action::confirm;
      if (somebody_died && (collective || action == Action::publish)) {
        // A collective never ends without the dead: nobody gets past it. After the confirm the
        // living publish, and wait in the next attempt's entry.
        for (std::size_t r = 0; r < ranks_.size(); ++r)
          if (!ranks_[r].dead && action == Action::publish) ++ranks_[r].published;
        check_after_a_death(before, action);
        return false;
      }
      switch (action) {
        case Action::vote: {
          const Ballot sum = in_every_order<Ballot>([&](std::size_t r) { return ballot(r); });
          for (auto& machine : machines) machine->voted(sum);
          break;
        }
        case Action::confirm: {
          const Confirm sum = in_every_order<Confirm>([&](std::size_t r) { return confirm(r); });
          for (auto& machine : machines) machine->confirmed(sum);
          break;
        }
        default:
          for (std::size_t r = 0; r < ranks_.size(); ++r) {
            if (action == Action::stage && policy_.update == UpdateMode::in_place)
              ++ranks_[r].mutated;
            if (action == Action::publish) ++ranks_[r].published;
            machines[r]->finished();
          }
      }
    }
    const std::vector<std::uint8_t> has_gradient = {1};
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].verdicts.push_back(machines[r]->verdict());
      const ControlState after = machines[r]->fold(before[r].control, has_gradient);
      check_outcome(before[r], ranks_[r], after);
      ranks_[r].control = after;
    }
    return ranks_[0].verdicts.back().kind != VerdictKind::halt;
  }

 private:
  Trouble trouble(std::size_t rank) const
  {
    for (const Fault& fault : faults_)
      if (fault.rank == rank && fault.attempt == attempt_) return fault.trouble;
    return Trouble::none;
  }
  bool has(std::size_t rank, Trouble wanted) const { return trouble(rank) == wanted; }
  /// Some rank has it, but not all: that is a disagreement.
  bool differs(Trouble wanted) const
  {
    std::size_t count = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) count += has(r, wanted);
    return count != 0 && count != ranks_.size();
  }
  bool any(std::initializer_list<Trouble> wanted) const
  {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      for (const Trouble t : wanted)
        if (has(r, t)) return true;
    return false;
  }

  Ballot ballot(std::size_t r) const
  {
    const auto rank = static_cast<std::uint32_t>(r);
    const ControlState& control = ranks_[r].control;
    Ballot b;
    for (auto& agreed : b.agreed) agreed = Agreement(0, rank);
    const auto agree = [&](AgreedField field, std::uint64_t value) {
      b.agreed[static_cast<std::size_t>(field)] = Agreement(value, rank);
    };
    agree(AgreedField::step, control.step);
    agree(AgreedField::attempt, control.attempt);
    agree(AgreedField::loss_scale, static_cast<std::uint64_t>(control.loss_scale));
    agree(AgreedField::control_state, control.digest());
    b.participants = has(r, Trouble::missing_participant) ? 0 : 1;
    b.samples = 8;
    b.nonfinite = has(r, Trouble::nonfinite_gradient);
    b.nonfinite_state = has(r, Trouble::nonfinite_state);
    b.nonfinite_losses = has(r, Trouble::nonfinite_loss);
    if (b.nonfinite != 0) b.offender = {1, 0, 0, 0, 7, rank, 0x7f800000, 1};
    if (has(r, Trouble::fail_window))
      b.failure = {static_cast<std::uint32_t>(Phase::window), rank, 0};
    if (has(r, Trouble::fail_exchange))
      b.failure = {static_cast<std::uint32_t>(Phase::exchange), rank, 0};
    return b;
  }

  Confirm confirm(std::size_t r) const
  {
    const auto rank = static_cast<std::uint32_t>(r);
    Confirm c;
    c.attempt = Agreement(ranks_[r].control.attempt, rank);
    c.participants = has(r, Trouble::unconfirmed_participant) ? 0 : 1;
    c.nonfinite = has(r, Trouble::nonfinite_update) || has(r, Trouble::nonfinite_old_state);
    c.nonfinite_state = has(r, Trouble::nonfinite_old_state);
    if (has(r, Trouble::fail_stage))
      c.failure = {static_cast<std::uint32_t>(Phase::stage), rank, 0};
    if (has(r, Trouble::fail_gather))
      c.failure = {static_cast<std::uint32_t>(Phase::gather), rank, 0};
    return c;
  }

  template <class Record, class Contribution>
  Record in_every_order(Contribution contribution) const
  {
    std::vector<Record> records;
    for (std::size_t r = 0; r < ranks_.size(); ++r) records.push_back(contribution(r));
    std::vector<std::size_t> order(ranks_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::optional<Record> first;
    do {
      Record sum = records[order[0]];
      for (std::size_t i = 1; i < order.size(); ++i) sum.merge(records[order[i]]);
      if (!first) first = sum;
      if (!(sum == *first)) FAIL("the order of arrival changes the sum");
    } while (std::next_permutation(order.begin(), order.end()));
    return *first;
  }

  void check_outcome(const VirtualRank& before, const VirtualRank& rank,
                     const ControlState& after) const
  {
    const Verdict& verdict = rank.verdicts.back();
    const bool commit = verdict.kind == VerdictKind::commit;
    const bool staging_trouble =
        any({Trouble::fail_stage, Trouble::fail_gather, Trouble::unconfirmed_participant,
             Trouble::nonfinite_update, Trouble::nonfinite_old_state});
    const bool earlier_trouble =
        differs(Trouble::stale_step) || differs(Trouble::other_scale) ||
        any({Trouble::missing_participant, Trouble::fail_window, Trouble::fail_exchange,
             Trouble::nonfinite_gradient, Trouble::nonfinite_state, Trouble::nonfinite_loss});
    bool holds = verdict == ranks_[0].verdicts.back();         // one outcome
    holds &= commit == !(staging_trouble || earlier_trouble);  // and only where nothing is wrong
    holds &= rank.published == before.published + (commit ? 1 : 0);
    // In place the state moves when staging begins, which only a Commit of the ballot lets happen;
    // what goes wrong then is a Halt that says so.
    const bool moved = rank.mutated != before.mutated;
    holds &= !(moved && earlier_trouble);
    holds &= !moved || commit || verdict.kind == VerdictKind::halt;
    holds &= rank.collectives == ranks_[0].collectives;
    holds &= after.step == rank.control.step + (commit ? 1 : 0);
    if (verdict.kind == VerdictKind::halt)
      holds &= after == rank.control;
    else
      holds &= after.attempt == rank.control.attempt + 1;
    std::uint64_t due = 0;
    for (const Interval interval : after.ledger.replay) due += interval.size();
    holds &= after.ledger.next ==
             after.ledger.committed_samples() + after.ledger.dropped_samples() + due;
    if (policy_.samples == SamplePolicy::drop) holds &= due == 0;
    if (!holds) {
      INFO("attempt " << attempt_ << ", verdict " << static_cast<int>(verdict.kind) << ", reason "
                      << name_of(verdict.reason));
      for (const Fault& fault : faults_)
        UNSCOPED_INFO("rank " << fault.rank << " attempt " << fault.attempt << " trouble "
                              << static_cast<int>(fault.trouble));
      FAIL("the invariant is broken");
    }
  }

  /// Whoever dies before the confirm has ended takes the update with it: nobody has published.
  void check_after_a_death(const std::vector<VirtualRank>& before, Action action) const
  {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::uint64_t moved = ranks_[r].published - before[r].published;
      if (moved != (action == Action::publish && !ranks_[r].dead ? 1u : 0u))
        FAIL("an update was published without all ranks' word");
      if (!(ranks_[r].control == before[r].control)) FAIL("a death moved a control state");
    }
  }

  const Policy& policy_;
  std::vector<VirtualRank> ranks_;
  std::vector<Fault> faults_;
  int attempt_ = 0;
};

constexpr int attempts = 2;

std::vector<Fault> all_faults(std::size_t size)
{
  std::vector<Fault> out = {{}};  // and none
  for (std::size_t rank = 0; rank < size; ++rank)
    for (int attempt = 0; attempt < attempts; ++attempt)
      for (int trouble = 1; trouble < trouble_count; ++trouble)
        out.push_back({rank, attempt, static_cast<Trouble>(trouble)});
  return out;
}

std::vector<Policy> policies(std::size_t size)
{
  std::vector<Policy> out;
  for (const UpdateMode mode : {UpdateMode::staged, UpdateMode::in_place})
    for (const SamplePolicy samples : {SamplePolicy::replay, SamplePolicy::drop})
      for (const bool scaled : {false, true}) {
        Policy policy;
        policy.participants = size;
        policy.update = mode;
        policy.samples = samples;
        policy.scaling.enabled = scaled;
        policy.betas.resize(1);
        out.push_back(policy);
      }
  return out;
}

}  // namespace

TEST_CASE("one outcome for every pair of faults at every point in every order of arrival")
{
  for (std::size_t size = 1; size <= 4; ++size)
    for (const Policy& policy : policies(size)) {
      const std::vector<Fault> faults = all_faults(size);
      // Every pair for 1 to 3 ranks; for 4, pairs of different ranks, from which symmetry and the
      // smaller jobs leave nothing out that has a meaning of its own.
      for (std::size_t a = 0; a < faults.size(); ++a)
        for (std::size_t b = a; b < faults.size(); ++b) {
          if (size == 4 && a != 0 && (faults[a].rank != 0 || faults[b].rank != 3)) continue;
          Job job(policy, size, {faults[a], faults[b]});
          for (int attempt = 0; attempt < attempts; ++attempt)
            if (!job.attempt(attempt)) break;
        }
    }
}

TEST_CASE("limits end a run with their own reason on all ranks alike")
{
  Policy policy;
  policy.participants = 3;
  policy.betas.resize(1);
  policy.repeat_limit = 2;
  Job job(policy, 3, {{1, 0, Trouble::nonfinite_gradient}, {2, 1, Trouble::nonfinite_gradient}});
  REQUIRE(job.attempt(0));
  REQUIRE_FALSE(job.attempt(1));
}
