// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What one rank's caller does otherwise than the others, or than it was told to: it ends on all
// ranks alike, with words that say what and where, and nothing has moved.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/sharded_adam.hpp"

using namespace tutti;
using tutti::test::agreed;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

constexpr std::size_t elements = 20000;  // in five blocks, the last one not full

bool contains(const std::string& text, const std::string& part)
{
  return text.find(part) != std::string::npos;
}

/// As a rank whose plan is not that of the others would vote.
class Planned final : public ShardedAdam {
 public:
  using ShardedAdam::ShardedAdam;
  std::uint64_t other_plan = 0;
  std::uint64_t plan_hash() const override { return ShardedAdam::plan_hash() + other_plan; }
};

struct Options {
  Options() { coordinator.window_samples = 8; }
  AdamOptions adam{};
  CoordinatorOptions coordinator{};
  std::uint64_t other_plan = 0;
};

/// A job of one optimizer, and how its construction ended.
struct Job {
  explicit Job(const Options& options = {})
  {
    ParameterSet set;
    set.add({"field", {elements}, Precision::fp32, Placement::replicated, 0, {}});
    adam = std::make_unique<Planned>(topology, *device, set, options.adam);
    adam->other_plan = options.other_plan;
    adam->initialize([](std::size_t) { return std::vector<float>(elements, 1.0f); });
    try {
      coordinator = std::make_unique<Coordinator>(topology, std::vector<Participant*>{adam.get()},
                                                  options.coordinator);
    } catch (const InvalidArgument& error) {
      refusal = error.what();
    }
  }
  ~Job()
  {
    if (coordinator) coordinator->close();
    adam->close_buffers();
    topology.close();
  }

  /// Also of a halt.
  Outcome attempt()
  {
    Window window = coordinator->open_window();
    for (std::uint32_t micro = 0; micro < window.micro_batches(); ++micro) {
      auto* gradient = static_cast<float*>(adam->gradient(0));
      for (std::size_t e = 0; e < adam->piece(0).elements; ++e) gradient[e] = 0.5f;
      window.add_micro_batch(1, 1);
    }
    try {
      return coordinator->step(window);
    } catch (const Halt& halt) {
      return halt.outcome;
    }
  }

  std::uint64_t digest()
  {
    Participant* const participants[] = {adam.get()};
    return state_digest(participants, MPI_COMM_WORLD);
  }

  Topology topology{MPI_COMM_WORLD};
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Planned> adam;
  std::unique_ptr<Coordinator> coordinator;
  std::string refusal;
};

}  // namespace

TEST_CASE("each thing that ranks must agree on halts all when one rank differs, and is named")
{
  if (world_size() == 1) return;  // nobody to disagree with
  struct Case {
    AgreedField field;
    std::function<void(Options&)> made_otherwise;
    std::function<void(ControlState&)> resumed_otherwise;
  };
  const std::vector<Case> cases = {
      {AgreedField::step, {}, [](ControlState& c) { ++c.step; }},
      {AgreedField::attempt, {}, [](ControlState& c) { ++c.attempt; }},
      {AgreedField::loss_scale, {}, [](ControlState& c) { c.loss_scale *= 2; }},
      {AgreedField::learning_rate,
       [](Options& o) { o.coordinator.policy.schedule.warmup = 100; },
       {}},
      {AgreedField::configuration, [](Options& o) { o.coordinator.policy.max_norm = 1; }, {}},
      {AgreedField::configuration, [](Options& o) { o.coordinator.window_samples = 9; }, {}},
      {AgreedField::configuration, [](Options& o) { o.coordinator.micro_batches = 2; }, {}},
      {AgreedField::configuration, [](Options& o) { o.coordinator.configuration_hash = 7; }, {}},
      {AgreedField::configuration, [](Options& o) { o.adam.learning_rate = 2e-3; }, {}},
      {AgreedField::shard_plan, [](Options& o) { o.other_plan = 1; }, {}},
      {AgreedField::control_state, {}, [](ControlState& c) { ++c.growth_tracker; }},
      {AgreedField::control_state, {}, [](ControlState& c) { c.ledger.epoch_samples = 96; }},
      {AgreedField::control_state, {}, [](ControlState& c) { c.pending_save = 5; }},
      {AgreedField::control_state, {}, [](ControlState& c) { c.clocks[0].beta1_product = 0.25; }}};
  for (const Case& c : cases)
    for (const int odd : {0, world_size() - 1}) {
      Options options;
      options.adam.micro_batches = 2;  // as many as any rank's window has
      if (c.made_otherwise && world_rank() == odd) c.made_otherwise(options);
      Job job(options);
      REQUIRE(job.coordinator != nullptr);
      ControlState control = job.coordinator->control();
      if (c.resumed_otherwise && world_rank() == odd) c.resumed_otherwise(control);
      job.coordinator->resume(control);
      const std::uint64_t before = job.digest();
      const Outcome outcome = job.attempt();
      INFO(name_of(c.field) << " of rank " << odd << ": " << outcome.message);
      CHECK(outcome.verdict.reason == Reason::control_mismatch);
      CHECK(outcome.verdict.field == c.field);
      const int named = world_size() == 2 ? 1 : odd;  // of two, nobody knows which is right
      CHECK(outcome.verdict.rank == static_cast<std::uint32_t>(named));
      CHECK(contains(outcome.message, std::string(name_of(c.field)) + " on rank " +
                                          std::to_string(named) + " differs"));
      CHECK(agreed(outcome.message));
      CHECK(job.digest() == before);
      CHECK_THROWS_AS(job.coordinator->open_window(), InvalidArgument);
    }
}

TEST_CASE("a policy that one rank cannot have is refused on all ranks with the same words")
{
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<std::string, std::function<void(CoordinatorOptions&)>>> cases = {
      {"window samples = 0", [](auto& o) { o.window_samples = 0; }},
      {"micro-batches = 0", [](auto& o) { o.micro_batches = 0; }},
      {"max_norm = -1", [](auto& o) { o.policy.max_norm = -1; }},
      {"max_norm = nan", [](auto& o) { o.policy.max_norm = std::nan(""); }},
      {"max_skip_rate = 2", [](auto& o) { o.policy.max_skip_rate = 2; }},
      {"skip_window = 65", [](auto& o) { o.policy.skip_window = 65; }},
      {"initial loss scale = 0", [](auto& o) { o.policy.scaling.initial = 0; }},
      {"initial loss scale = inf", [=](auto& o) { o.policy.scaling.initial = infinite; }},
      {"growth factor = 0.5", [](auto& o) { o.policy.scaling.growth_factor = 0.5; }},
      {"back-off factor = 2", [](auto& o) { o.policy.scaling.backoff_factor = 2; }},
      {"growth interval = 0", [](auto& o) { o.policy.scaling.growth_interval = 0; }},
      {"minimum loss scale = 1000000", [](auto& o) { o.policy.scaling.minimum = 1e6; }},
      {"maximum loss scale = 2", [](auto& o) { o.policy.scaling.maximum = 2; }}};
  for (const auto& [words, spoil] : cases)
    for (const int rank : {0, world_size() - 1}) {
      INFO(words << " on rank " << rank);
      Options options;
      options.coordinator.policy.scaling.enabled = true;
      if (world_rank() == rank) spoil(options.coordinator);
      Job job(options);
      CHECK(job.refusal.find(words + " is refused (not ") == 0);
      CHECK(agreed(job.refusal));
    }
}

TEST_CASE("optimizers that a checkpoint could not tell apart are refused")
{
  Job job;
  Planned twin(job.topology, *job.device, job.adam->parameter_set(), {});
  std::string message;
  try {
    Coordinator coordinator(job.topology, {job.adam.get(), &twin}, {});
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  CHECK(message.find("optimizers 0 and 1 are both named 'adam' (") == 0);
  CHECK(agreed(message));
  twin.close_buffers();
}

TEST_CASE("initial values that one rank cannot give are refused on all ranks")
{
  Job job;
  CHECK(job.attempt().committed());
  const auto refused = [&](const std::function<std::vector<float>(std::size_t)>& values) {
    std::string message;
    try {
      job.adam->initialize(values);
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    CHECK(agreed(message));
    return message;
  };
  for (int rank = 0; rank < world_size(); ++rank) {
    // A rank that owns nothing is not asked for values.
    if (job.adam->plan().shard(rank).empty()) continue;
    const std::string where =
        "initial values of adam/field cannot be had on rank " + std::to_string(rank) + " (";
    CHECK(refused([&](std::size_t) -> std::vector<float> {
            if (world_rank() == rank) throw std::runtime_error("no such file");
            return std::vector<float>(elements, 2.0f);
          }).find(where + "no such file); ") == 0);
    CHECK(refused([&](std::size_t) {
            return std::vector<float>(world_rank() == rank ? 7 : elements, 2.0f);
          }).find(where + "there are 7 values for 20000 elements); ") == 0);
  }
  // Those that all can give begin anew: no moments of the step before.
  job.adam->initialize([](std::size_t) { return std::vector<float>(elements, 3.0f); });
  for (const StateArray& array : job.adam->state().arrays)
    for (std::size_t i = 0; i < job.adam->plan().shard(world_rank()).size(); ++i)
      CHECK(array.data[i * block_elements] == (array.name == "master" ? 3.0f : 0.0f));
  CHECK(static_cast<const float*>(job.adam->weights(0))[elements - 1] == 3.0f);
  CHECK(job.attempt().committed());
}

TEST_CASE("an optimizer that was made for another window or update than the coordinator's")
{
  Options options;
  options.coordinator.micro_batches = 3;
  {
    Job job(options);
    const std::uint64_t before = job.digest();
    const Outcome outcome = job.attempt();
    CHECK(outcome.verdict.reason == Reason::window_failed);
    CHECK(contains(outcome.message,
                   "optimizer adam cannot take micro-batch 1 (it was made for 1 "
                   "a window"));
    CHECK(agreed(outcome.message));
    CHECK(job.digest() == before);
  }
  for (const UpdateMode mode : {UpdateMode::staged, UpdateMode::in_place}) {
    options = {};
    options.adam.update = mode;
    options.coordinator.policy.update =
        mode == UpdateMode::staged ? UpdateMode::in_place : UpdateMode::staged;
    Job job(options);
    const std::uint64_t before = job.digest();
    const Outcome outcome = job.attempt();
    CHECK(outcome.verdict.kind == VerdictKind::halt);
    CHECK(contains(outcome.message, "optimizer adam cannot make the update ("));
    CHECK(agreed(outcome.message));
    CHECK(job.digest() == before);
  }
}
