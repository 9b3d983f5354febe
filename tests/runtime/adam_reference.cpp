// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What whole windows make of the state, against a serial Adam in fp64 that knows nothing of ranks:
// uneven sample counts, absent gradients, clipping, weight decay and a schedule that moves. Runs
// with 1 to 4 ranks.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/digest.hpp"
#include "tutti/sharded_adam.hpp"

using namespace tutti;
using tutti::test::world_size;

namespace {

constexpr int windows = 4;
constexpr double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-6, rate = 0.01, weight_decay = 0.1;

enum Parameter : std::size_t { everywhere, not_on_last, not_in_third, parameter_count };
constexpr std::size_t elements[parameter_count] = {9001, 5000, 300};

/// Larger in some windows than in others, so that some are clipped and a missing factor shows. Sums
/// are exact in fp32: what nearly cancels would be another gradient there.
float gradient(int window, int rank, std::uint32_t micro, std::size_t p, std::size_t e)
{
  constexpr float size[windows] = {1, 4, 0.5, 2};
  const std::uint64_t hash =
      mix64(mix64(static_cast<std::uint64_t>(100 * window + rank), micro), mix64(p, e));
  return size[window] * (static_cast<float>(hash % 4097) - 2048) / 4096;
}

float initial(std::size_t p, std::size_t e)
{
  return static_cast<float>(mix64(p + 77, e) % 2001) / 1000 - 1;
}

bool has(int window, int rank, int ranks, std::size_t p)
{
  if (p == not_on_last) return ranks == 1 || rank != ranks - 1;
  return p != not_in_third || window != 2;
}

std::uint64_t samples(int window, int rank, std::uint32_t micro)
{
  return 1 + static_cast<std::uint64_t>(window + rank + static_cast<int>(micro)) % 3;
}

/// Below the norm of all windows but the third.
double max_norm(int ranks) { return 40 * std::sqrt(ranks); }

/// As in the textbook, in fp64.
struct SerialAdam {
  std::vector<double> w[parameter_count], m[parameter_count], v[parameter_count];
  int steps[parameter_count] = {};
  int clipped = 0;
  SerialAdam()
  {
    for (std::size_t p = 0; p < parameter_count; ++p) {
      for (std::size_t e = 0; e < elements[p]; ++e) w[p].push_back(initial(p, e));
      m[p].assign(elements[p], 0);
      v[p].assign(elements[p], 0);
    }
  }
  void step(int window, int ranks, std::uint32_t micros, double nominal, double factor,
            bool decoupled)
  {
    std::vector<double> g[parameter_count];
    double count = 0, squares = 0;
    for (int r = 0; r < ranks; ++r)
      for (std::uint32_t k = 0; k < micros; ++k)
        count += static_cast<double>(samples(window, r, k));
    for (std::size_t p = 0; p < parameter_count; ++p) {
      g[p].assign(elements[p], 0);
      for (int r = 0; r < ranks; ++r)
        for (std::uint32_t k = 0; k < micros && has(window, r, ranks, p); ++k)
          for (std::size_t e = 0; e < elements[p]; ++e) g[p][e] += gradient(window, r, k, p, e);
      for (double& x : g[p]) {
        x *= nominal / count;
        squares += x * x;
      }
    }
    const double clip = std::min(1.0, max_norm(ranks) / (std::sqrt(squares) + 1e-6));
    clipped += clip < 1;
    for (std::size_t p = 0; p < parameter_count; ++p) {
      bool any = false;
      for (int r = 0; r < ranks; ++r) any = any || has(window, r, ranks, p);
      if (!any) continue;
      ++steps[p];
      for (std::size_t e = 0; e < elements[p]; ++e) {
        double x = g[p][e] * clip;
        if (decoupled)
          w[p][e] *= 1 - rate * factor * weight_decay;
        else
          x += weight_decay * w[p][e];
        m[p][e] = beta1 * m[p][e] + (1 - beta1) * x;
        v[p][e] = beta2 * v[p][e] + (1 - beta2) * x * x;
        const double mean = m[p][e] / (1 - std::pow(beta1, steps[p]));
        const double square = v[p][e] / (1 - std::pow(beta2, steps[p]));
        w[p][e] -= rate * factor * mean / (std::sqrt(square) + epsilon);
      }
    }
  }
};

void fill(ShardedAdam& adam, std::size_t p, float value)
{
  auto* const values = static_cast<float*>(adam.gradient(p));
  std::fill(values, values + adam.piece(p).elements, value);
}

/// Values of this rank's state that are further than fp32 explains from the serial ones.
std::size_t wrong(ShardedAdam& adam, const SerialAdam& serial, int rank)
{
  const StateView state = adam.state();
  const SlotLayout& layout = state.plan->layout(0);
  const std::vector<std::uint32_t>& shard = state.plan->shard(rank);
  std::size_t count = 0;
  for (const StateArray& array : state.arrays) {
    const auto& reference = array.name == "master"    ? serial.w
                            : array.name == "exp_avg" ? serial.m
                                                      : serial.v;
    for (std::size_t b = 0; b < shard.size(); ++b) {
      const std::uint32_t p = layout.parameter_of(shard[b]);
      const std::size_t begin = (shard[b] - layout.piece(p).first_block) * block_elements;
      for (std::size_t e = begin; e < std::min(begin + block_elements, elements[p]); ++e) {
        const double expected = reference[p][e];
        const double here = array.data[b * block_elements + e - begin];
        count += !(std::abs(here - expected) <= 4e-6 * (std::abs(expected) + 0.1));
      }
    }
  }
  return count;
}

/// A job with one optimizer of fp32 parameters.
struct Job {
  Job(const ParameterSet& parameters, const AdamOptions& options, int model_parallel, Policy policy,
      std::uint64_t window_samples)
      : topology(MPI_COMM_WORLD, {.model_parallel = model_parallel}),
        device(make_host_device()),
        adam(topology, *device, parameters, options)
  {
    CoordinatorOptions c;
    c.policy = policy;
    c.window_samples = window_samples;
    c.micro_batches = options.micro_batches;
    coordinator.emplace(topology, std::vector<Participant*>{&adam}, c);
  }
  ~Job()
  {
    coordinator->close();
    adam.close_buffers();
    topology.close();
  }
  Topology topology;
  std::unique_ptr<Device> device;
  ShardedAdam adam;
  std::optional<Coordinator> coordinator;
};

}  // namespace

TEST_CASE("windows of all ranks make the state that a serial Adam makes")
{
  for (const bool decoupled : {false, true})
    for (const std::uint32_t micros : {1u, 2u})
      for (const UpdateMode update : {UpdateMode::staged, UpdateMode::in_place}) {
        const int ranks = world_size();
        ParameterSet parameters;
        for (std::size_t p = 0; p < parameter_count; ++p)
          parameters.add({.name = std::string("p") + std::to_string(p), .shape = {elements[p]}});
        AdamOptions options;
        options.learning_rate = rate;
        options.beta1 = beta1;
        options.beta2 = beta2;
        options.epsilon = epsilon;
        options.weight_decay = weight_decay;
        options.decoupled = decoupled;
        options.update = update;
        options.micro_batches = micros;
        Policy policy;
        policy.update = update;
        policy.max_norm = max_norm(ranks);
        policy.schedule = {
            .kind = ScheduleKind::linear, .warmup = 1, .horizon = 6, .final_factor = 0.1};
        const auto nominal = static_cast<std::uint64_t>(4 * ranks);
        Job job(parameters, options, 1, policy, nominal);
        job.adam.initialize([](std::size_t p) {
          std::vector<float> values;
          for (std::size_t e = 0; e < elements[p]; ++e) values.push_back(initial(p, e));
          return values;
        });
        SerialAdam serial;
        const int rank = job.topology.rank();
        for (int w = 0; w < windows; ++w) {
          if (w == 1) {  // an attempt that makes no step moves nothing, the schedule neither
            Window bad = job.coordinator->open_window();
            for (std::uint32_t k = 0; k < micros; ++k) {
              for (std::size_t p = 0; p < parameter_count; ++p)
                fill(job.adam, p, std::numeric_limits<float>::infinity());
              bad.add_micro_batch(1, 1);
            }
            REQUIRE_FALSE(job.coordinator->step(bad).committed());
          }
          Window window = job.coordinator->open_window();
          for (std::uint32_t k = 0; k < micros; ++k) {
            for (std::size_t p = 0; p < parameter_count; ++p) {
              if (has(w, rank, ranks, p)) {
                auto* const values = static_cast<float*>(job.adam.gradient(p));
                for (std::size_t e = 0; e < elements[p]; ++e)
                  values[e] = gradient(w, rank, k, p, e);
              } else {  // what was written before it was given up counts as little
                fill(job.adam, p, 1000);
                job.adam.set_absent(p);
              }
            }
            window.add_micro_batch(1, samples(w, rank, k));
          }
          REQUIRE(job.coordinator->step(window).committed());
          serial.step(w, ranks, micros, static_cast<double>(nominal), policy.schedule.factor(w),
                      decoupled);
          INFO("window " << w << ", " << micros << " micro-batches, decoupled " << decoupled);
          REQUIRE(test::on_all_ranks(wrong(job.adam, serial, rank) == 0));
        }
        CHECK(serial.clipped == windows - 1);
      }
}

TEST_CASE("a rank that adds no micro-batch gives no gradient, whatever it wrote")
{
  const int ranks = world_size();
  if (ranks == 1) return;
  ParameterSet parameters;
  parameters.add({.name = "p", .shape = {5000}});
  Job job(parameters, {}, 1, {}, 4);
  job.adam.initialize([](std::size_t) { return std::vector<float>(5000, 1); });
  Window window = job.coordinator->open_window();
  const bool last = job.topology.rank() == ranks - 1;
  fill(job.adam, 0, last ? std::numeric_limits<float>::quiet_NaN() : 0.25f);
  if (!last) window.add_micro_batch(1, 1);
  const Outcome outcome = job.coordinator->step(window);
  CHECK(outcome.committed());
  // (ranks - 1) x 0.25 for `ranks - 1` samples of 4.
  CHECK(outcome.grad_norm == Approx(std::sqrt(5000.0)));
}

TEST_CASE("a copy that no owner reads votes all the same")
{
  if (world_size() % 2 != 0) return;
  ParameterSet parameters;
  parameters.add({.name = "bias", .shape = {10}});  // one block: of slot 0
  Job job(parameters, {}, 2, {}, 4);
  job.adam.initialize([](std::size_t) { return std::vector<float>(10, 1); });
  Window window = job.coordinator->open_window();
  fill(job.adam, 0, job.topology.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
  window.add_micro_batch(1, 1);
  const Outcome outcome = job.coordinator->step(window);
  CHECK_FALSE(outcome.committed());
  CHECK(outcome.offender.rank == 1);
}

TEST_CASE("a slot may hold nothing of the last parameter, or nothing at all")
{
  if (world_size() % 2 != 0) return;
  for (const bool alone : {true, false}) {
    ParameterSet parameters;
    if (!alone) parameters.add({.name = "first", .shape = {3, 5}});
    parameters.add({.name = "single", .shape = {1}, .placement = Placement::split});
    Job job(parameters, {}, 2, {}, 4);
    job.adam.initialize(
        [&](std::size_t p) { return std::vector<float>(parameters[p].elements(), 1); });
    for (int w = 0; w < 3; ++w) {
      Window window = job.coordinator->open_window();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        CHECK(job.adam.weights(p) != nullptr);
        fill(job.adam, p, 1);
        if (w == 1) job.adam.set_absent(p);
      }
      window.add_micro_batch(1, 1);
      REQUIRE(job.coordinator->step(window).committed());
    }
  }
}

TEST_CASE("settings with which no step can be made are refused")
{
  ParameterSet parameters;
  parameters.add({.name = "p", .shape = {10}});
  Policy policy;
  policy.schedule = {.kind = ScheduleKind::cosine, .warmup = 0, .horizon = 0, .final_factor = 0};
  Topology topology(MPI_COMM_WORLD);
  const auto device = make_host_device();
  AdamOptions options;
  options.epsilon = 1e-46;  // nothing in fp32
  CHECK_THROWS_AS(ShardedAdam(topology, *device, parameters, options), InvalidArgument);
  ShardedAdam adam(topology, *device, parameters, {});
  CoordinatorOptions c;
  c.policy = policy;
  CHECK_THROWS_AS(Coordinator(topology, {&adam}, c), InvalidArgument);
  c.policy.schedule = {.final_factor = 2};
  CHECK_THROWS_AS(Coordinator(topology, {&adam}, c), InvalidArgument);
  adam.close_buffers();
  topology.close();
}
