// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A bad window computed again: what three computations say of the cause, and that the protocol
// around them holds on every rank, at every degree, whatever fails in it.
#include "tutti/recomputation.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/digest.hpp"
#include "tutti/half.hpp"
#include "tutti/sharded_adam.hpp"

using namespace tutti;
using tutti::test::agreed;
using tutti::test::degrees;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

struct JobOptions {
  int model_parallel = 1;
  bool shared_memory = true;
  AdamOptions adam{};
  CoordinatorOptions coordinator{};
  bool recomputes = true;
};

/// Gradients are sums over the samples at a micro-batch's positions, so that any rank comes to the
/// same for them.
class Job {
 public:
  explicit Job(JobOptions o)
      : topology_(MPI_COMM_WORLD, {o.model_parallel, o.shared_memory, 0}),
        device_(make_host_device())
  {
    ParameterSet set;
    set.add({"split", {6, 1500}, Precision::fp16, Placement::split, 0, {}});
    set.add({"bias", {70}, Precision::fp32, Placement::replicated, 0, ReplicaGradient::identical});
    o.adam.micro_batches = o.coordinator.micro_batches;
    adam_ = std::make_unique<ShardedAdam>(topology_, *device_, set, o.adam);
    adam_->initialize([](std::size_t p) { return std::vector<float>(p == 0 ? 9000 : 70, 0.5f); });
    o.coordinator.window_samples = 24 * static_cast<std::uint64_t>(topology_.data_parallel());
    if (o.recomputes)
      o.coordinator.recompute = [this](Interval positions, double scale) {
        ++calls;
        if (broken) throw IoError("the samples are gone");
        return compute(positions, scale, again);
      };
    coordinator_ = std::make_unique<Coordinator>(topology_, std::vector<Participant*>{adam_.get()},
                                                 o.coordinator);
  }
  ~Job()
  {
    coordinator_->close();
    adam_->close_buffers();
    topology_.close();
  }

  /// What a computation gets wrong.
  struct Wrong {
    std::optional<std::uint64_t> position;  ///< in the gradients that this sample has a part in
    float value = 0;
    std::optional<double> loss;
    bool only_bias = false;
  };

  Outcome attempt()
  {
    Window window = coordinator_->open_window();
    for (std::uint32_t micro = 0; micro < window.micro_batches(); ++micro) {
      const Interval positions = window.positions(micro);
      const double loss = compute(positions, window.gradient_scale(), first);
      window.add_micro_batch(loss, positions.size());
    }
    try {
      return coordinator_->step(window);
    } catch (const Halt& halt) {
      return halt.outcome;
    }
  }

  std::uint64_t digest()
  {
    Participant* const all[] = {adam_.get()};
    return state_digest(all, MPI_COMM_WORLD);
  }
  const Topology& topology() const { return topology_; }
  const ControlState& control() const { return coordinator_->control(); }

  Wrong first, again;  ///< on this rank
  bool broken = false;
  int calls = 0;

 private:
  double compute(Interval positions, double scale, const Wrong& wrong)
  {
    for (std::size_t p = 0; p < 2; ++p) {
      const Piece& piece = adam_->piece(p);
      for (std::size_t e = 0; e < piece.elements; ++e) {
        double sum = 0;
        for (std::uint64_t at = positions.begin; at < positions.end; ++at)
          sum += static_cast<double>(mix64(at, piece.global_index(e)) % 17) - 8;
        sum *= scale;
        if (e == 11 && wrong.position && *wrong.position >= positions.begin &&
            *wrong.position < positions.end && (p == 1 || !wrong.only_bias))
          sum = static_cast<double>(wrong.value);
        store_element(adam_->gradient(p), p == 0 ? Precision::fp16 : Precision::fp32, e,
                      static_cast<float>(sum));
      }
    }
    return wrong.loss && !positions.empty() ? *wrong.loss
                                            : 0.25 * static_cast<double>(positions.size());
  }

  Topology topology_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ShardedAdam> adam_;
  std::unique_ptr<Coordinator> coordinator_;
};

constexpr float inf = std::numeric_limits<float>::infinity();

/// Of an attempt that was not committed, equal on all ranks.
Recomputation recomputation_of(const Outcome& outcome)
{
  const bool there = outcome.incident != nullptr && outcome.incident->recomputation.has_value();
  REQUIRE(tutti::test::on_all_ranks(there));
  CHECK(agreed(to_json(*outcome.incident)));
  CHECK(incident_from_json(to_json(*outcome.incident)) == *outcome.incident);
  return *outcome.incident->recomputation;
}

}  // namespace

TEST_CASE("three computations and what they say of the cause")
{
  // Each computation is finite or not, and its bits are 1, 2 or 3.
  std::size_t counts[4] = {};
  for (const bool comparable : {true, false})
    for (const bool alone : {true, false})
      for (int states = 0; states < 6 * 6 * 6; ++states) {
        const auto contribution = [](int state) {
          return Contribution{static_cast<std::uint64_t>(state / 2), state % 2 == 1};
        };
        const Contribution first = contribution(states % 6), again = contribution(states / 6 % 6);
        const Contribution elsewhere = alone ? again : contribution(states / 36);
        Recomputation r;
        r.rank = 4;
        r.other = alone ? 4 : 6;
        r.comparable = comparable;
        classify(r, first, again, elsewhere);
        INFO(explain(r));
        ++counts[static_cast<std::size_t>(r.cause)];
        if (r.cause == Cause::transient) {
          CHECK(again != first);
          CHECK(again.finite);
          if (comparable) CHECK(again == elsewhere);
        }
        if (r.cause == Cause::machine) {
          CHECK_FALSE(alone);
          CHECK(again != elsewhere);
          if (!comparable) CHECK((elsewhere.finite && !again.finite && !first.finite));
        }
        if (r.cause == Cause::data) {
          CHECK_FALSE(alone);
          CHECK(again.finite == elsewhere.finite);
          if (comparable) CHECK(again == elsewhere);
        }
        if (r.cause == Cause::unknown) CHECK((alone || !comparable));
        if (comparable && !alone) {
          CHECK((r.cause == Cause::machine) == (again != elsewhere));
          if (again == elsewhere && again == first) CHECK(r.cause == Cause::data);
          if (again == elsewhere && again != first && again.finite)
            CHECK(r.cause == Cause::transient);
        }
        if (!comparable && !alone && !first.finite) CHECK(r.cause != Cause::unknown);
      }
  for (const std::size_t count : counts) CHECK(count > 0);
}

TEST_CASE("transient, machine or data, whichever rank it is, and nothing else changes")
{
  for (int m : degrees())
    for (const std::uint32_t micro_batches : {1u, 3u})
      for (const bool shared : {true, false})
        for (int rank = 0; rank < world_size(); ++rank)
          for (const Cause cause : {Cause::transient, Cause::machine, Cause::data}) {
            INFO("model-parallel " << m << ", rank " << rank << ", " << name_of(cause));
            JobOptions options;
            options.model_parallel = m;
            options.shared_memory = shared;
            options.coordinator.micro_batches = micro_batches;
            std::uint64_t expected[2] = {};
            for (const bool recomputes : {false, true}) {
              options.recomputes = recomputes;
              Job job(options);
              CHECK(job.attempt().committed());
              CHECK(job.calls == 0);
              const int groups = job.topology().data_parallel(), group = rank / m;
              // A sample of the second window, in the last micro-batch of that rank.
              const std::uint64_t position = 24 * static_cast<std::uint64_t>(groups + group) + 23;
              const bool there = world_rank() == rank;
              if (there || cause == Cause::data) job.first = {position, inf, {}};
              if (cause == Cause::data || (there && cause == Cause::machine)) job.again = job.first;
              const Outcome outcome = job.attempt();
              CHECK(outcome.verdict.reason == Reason::gradient);
              const int mine = job.topology().data_rank();
              const bool takes_part = mine == group || mine == (group + 1) % groups;
              CHECK(job.calls == (recomputes && takes_part ? static_cast<int>(micro_batches) : 0));
              if (recomputes) {
                const Recomputation r = recomputation_of(outcome);
                CHECK(r.failure.empty());
                CHECK(r.rank == outcome.offender.rank);
                CHECK(r.rank / static_cast<std::uint32_t>(m) == static_cast<std::uint32_t>(group));
                CHECK(r.other == static_cast<std::uint32_t>((group + 1) % groups * m) +
                                     r.rank % static_cast<std::uint32_t>(m));
                CHECK(r.comparable);
                const Cause seen = groups > 1                  ? cause
                                   : cause == Cause::transient ? cause
                                                               : Cause::unknown;
                CHECK(name_of(r.cause) == name_of(seen));
                CHECK(r.repeats == (cause != Cause::transient));
                CHECK(outcome.message.find("computed again: " + std::string(name_of(seen))) !=
                      std::string::npos);
              } else {
                CHECK_FALSE(outcome.incident->recomputation.has_value());
              }
              // What was computed again is not what the next window sums.
              job.first = job.again = {};
              CHECK(job.attempt().committed());
              (recomputes ? expected[1] : expected[0]) =
                  mix64(job.digest(), job.control().digest());
            }
            CHECK(expected[0] == expected[1]);
          }
}

TEST_CASE("a nonfinite loss, and a sum over ranks that leaves its range, are computed again too")
{
  if (world_size() == 1) return;
  for (const bool repeats : {false, true}) {
    Job job({});
    const double nan_value = std::numeric_limits<double>::quiet_NaN();
    if (world_rank() == 1) job.first.loss = nan_value;
    if (repeats && world_rank() == 1) job.again.loss = nan_value;
    const Recomputation r = recomputation_of(job.attempt());
    CHECK(r.cause == (repeats ? Cause::machine : Cause::transient));
    CHECK(r.rank == 1);
  }
  for (const bool repeats : {false, true}) {
    // Both contributions are finite; rank 1's is the one too many.
    Job job({});
    if (world_rank() == 0) job.first = {0, 3e38f, {}, true};
    if (world_rank() == 1) job.first = {24, 3e38f, {}, true};
    if (repeats) job.again = {24, 3e38f, {}, true};
    const Outcome outcome = job.attempt();
    const Recomputation r = recomputation_of(outcome);
    CHECK(outcome.incident->stage == "exchange");
    CHECK(r.rank == 1);
    CHECK(name_of(r.cause) == name_of(repeats ? Cause::data : Cause::transient));
  }
}

TEST_CASE("ranks that compute in different ways are only asked for what is finite")
{
  for (const Cause cause : {Cause::transient, Cause::machine, Cause::data}) {
    JobOptions options;
    options.coordinator.arithmetic = world_rank() % 2 == 0 ? "this" : "that";
    Job job(options);
    const bool there = world_rank() == 0;
    if (there) job.first = {7, inf, {}};
    if (cause == Cause::data || (there && cause == Cause::machine)) job.again = {7, -inf, {}};
    const Recomputation r = recomputation_of(job.attempt());
    CHECK(r.comparable == (world_size() == 1));
    if (world_size() == 1) continue;
    CHECK(name_of(r.cause) == name_of(cause));
  }
}

TEST_CASE("a rank that cannot compute again: the others do not wait, and its words are told")
{
  for (int m : degrees())
    for (int rank = 0; rank < world_size(); ++rank) {
      JobOptions options;
      options.model_parallel = m;
      options.coordinator.micro_batches = 2;
      Job job(options);
      job.broken = world_rank() == rank;
      if (world_rank() == 0) job.first = {7, inf, {}};
      const Outcome outcome = job.attempt();
      const Recomputation r = recomputation_of(outcome);
      const int group = rank / m;
      const bool asked = group == 0 || group == 1;
      CHECK(r.failure == (asked ? "rank " + std::to_string(rank) + ": the samples are gone" : ""));
      CHECK(name_of(r.cause) == name_of(asked ? Cause::unknown : Cause::transient));
      CHECK(outcome.verdict.reason == Reason::gradient);
      job.first = {};
      CHECK(job.attempt().committed());
    }
}

TEST_CASE("planned faults: permanent ones come again, exceptions are told")
{
  struct Plan {
    const char* fault;
    const char* other;
    Cause cause;
    const char* failure;
  };
  const Plan plans[] = {
      {"nonfinite:attempt=1,rank=0,micro=1,element=3,value=nan", "", Cause::transient, ""},
      {"nonfinite:attempt=1,rank=0,micro=1,element=3,value=nan,permanent=yes", "", Cause::machine,
       ""},
      {"loss:attempt=1,rank=0,micro=1,value=inf,permanent=no", "", Cause::transient, ""},
      {"loss:attempt=1,rank=0,micro=1,value=inf,permanent=yes", "", Cause::machine, ""},
      {"nonfinite:attempt=1,rank=0,value=nan", "throw:attempt=1,rank=0,phase=recompute",
       Cause::unknown, "rank 0: planned exception in phase recompute"}};
  for (const Plan& plan : plans) {
    INFO(plan.fault);
    JobOptions options;
    options.coordinator.micro_batches = 2;
    std::vector<Fault> faults{parse_fault(plan.fault)};
    if (*plan.other != 0) faults.push_back(parse_fault(plan.other));
    options.coordinator.faults = FaultPlan(faults);
    Job job(options);
    const Recomputation r = recomputation_of(job.attempt());
    const bool alone = world_size() == 1 && plan.cause == Cause::machine;
    CHECK(name_of(r.cause) == name_of(alone ? Cause::unknown : plan.cause));
    CHECK(r.failure == plan.failure);
    CHECK(job.attempt().committed());
  }
}

TEST_CASE("what no rank came to from its samples is not computed again")
{
  const auto calls_after = [](JobOptions options, const char* stage) {
    Job job(options);
    const Outcome outcome = job.attempt();
    REQUIRE(tutti::test::on_all_ranks(outcome.incident != nullptr));
    CHECK(outcome.incident->stage == stage);
    CHECK_FALSE(outcome.incident->recomputation.has_value());
    return job.calls;
  };
  JobOptions update;
  update.coordinator.faults = FaultPlan({parse_fault("update:attempt=1,rank=0")});
  CHECK(calls_after(update, "update") == 0);
  JobOptions failure;
  failure.coordinator.faults = FaultPlan({parse_fault("throw:attempt=1,rank=0,phase=window")});
  CHECK(calls_after(failure, "") == 0);
}

TEST_CASE("ranks that are not told alike to compute again halt before they wait for each other")
{
  if (world_size() == 1) return;
  JobOptions options;
  options.recomputes = world_rank() != 1;
  Job job(options);
  if (world_rank() == 0) job.first = {7, inf, {}};
  const Outcome outcome = job.attempt();
  CHECK(outcome.verdict.reason == Reason::control_mismatch);
  CHECK(outcome.verdict.field == AgreedField::configuration);
  CHECK(job.calls == 0);
}
