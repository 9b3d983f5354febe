// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of a step boundary on synthetic gradients that are already in place. Steps and memory
// bounds are measured by turns, all ranks at once, so that both see the same machine.
#include "bench_step.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "devices.hpp"
#include "measure.hpp"
#include "rounding.hpp"
#include "run_log.hpp"
#include "train_config.hpp"
#include "tutti/digest.hpp"
#include "tutti/memory_bound.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/tutti.hpp"
#include "watch.hpp"

namespace tutti::apps {
namespace {

constexpr std::array<const char*, 7> phase_names = {
    "exchange + scan", "ballot", "stage", "gather", "confirm", "publish", "waiting"};
constexpr std::uint64_t warm_up_steps = 2;
/// Steps of one kind in a row, when steps with and without guards are compared by turns.
constexpr std::uint64_t guard_block = 10;
constexpr double digest_every = 100;      ///< steps between two checks, in the cost that is told
constexpr double watchdog_seconds = 300;  ///< as in training
/// Sweeps of each kind over the memory after each step, and the arrays for them: larger than the
/// caches together.
constexpr int bound_sweeps = 5;
constexpr std::size_t bound_bytes = std::size_t{64} << 20;

/// Bytes that the program reads and writes in one committed update, for a parameter of an owner,
/// averaged over all. With D data-parallel ranks, of which S share memory with the owner (itself
/// included), w bytes on the wire and p bytes of a model value:
///   sum and scan    reads D w, writes the fp32 sum 4
///   Adam            reads the sum 4 and master, exp_avg, exp_avg_sq 12; writes 12 and the model
///   value p between domains each of the D - S other contributions is read by its sender and
///   written by the receiver, 2 w;
///                   each of the other domains gets the new value, 2 p
/// Hidden traffic (the read of a line before a plain store) and copies inside MPI are not counted.
/// `reduce_scatter` is counted like messages between all ranks.
double bytes_per_parameter(const Topology& topology, bool direct, double wire, double value)
{
  const int data_parallel = topology.data_parallel();
  double contributions = 0, copies = 0;
  for (int d = 0; d < data_parallel; ++d) {
    const int rank = d * topology.model_parallel() + topology.model_rank();
    const bool near =
        direct ? topology.same_domain(rank, topology.rank()) : rank == topology.rank();
    if (!near) contributions += 1;
    bool first = !near;  // one copy of the weights a domain
    for (int e = 0; e < d && first && direct; ++e)
      first = !topology.same_domain(e * topology.model_parallel() + topology.model_rank(), rank);
    if (first) copies += 1;
  }
  return data_parallel * wire + 4 + 16 + 12 + value + 2 * wire * contributions + 2 * value * copies;
}

/// Gradients with a spread of magnitudes, the same on every run.
void fill_gradient(std::vector<std::byte>& values, Precision precision, std::uint64_t stream)
{
  const std::size_t count = values.size() / bytes_of(precision);
  std::vector<float> chunk;
  for (std::size_t at = 0; at < count; at += chunk.size()) {
    chunk.resize(std::min<std::size_t>(count - at, 1u << 16));
    for (std::size_t i = 0; i < chunk.size(); ++i)
      chunk[i] =
          static_cast<float>(static_cast<double>(mix64(stream, at + i) >> 40) * 0x1p-24 - 0.5);
    from_fp32(values.data() + at * bytes_of(precision), precision, chunk.data(), chunk.size());
  }
}

}  // namespace

void declare(OptionTable& table, BenchConfig& c)
{
  const auto whole = [&](const char* name, std::uint64_t& target, double minimum, double maximum,
                         const char* help) {
    table.add({.name = name,
               .argument = "N",
               .target = &target,
               .role = Role::launch,
               .help = help,
               .minimum = minimum,
               .maximum = maximum});
  };
  const auto choice = [&](const char* name, std::string& target, std::vector<std::string> choices,
                          const char* help) {
    table.add({.name = name,
               .argument = fmt::format("{}", fmt::join(choices, "|")),
               .target = &target,
               .role = Role::launch,
               .help = help,
               .choices = std::move(choices)});
  };
  whole("elements", c.elements, 1, 1e11, "parameters over all model-parallel ranks");
  whole("steps", c.steps, 1, 1e6, "measured steps");
  whole("model-parallel", c.model_parallel, 1, 4096,
        "ranks that one copy of the model is cut over");
  choice("precision", c.precision, {"fp16", "bf16", "fp32"}, "of model values and gradients");
  choice("wire", c.wire, {"auto", "fp32"}, "precision in which gradients travel");
  choice("update", c.update, {"staged", "in_place"},
         "make the update beside the state, or over it");
  choice("exchange", c.exchange, {"ordered", "reduce_scatter"},
         "how gradients are summed over ranks");
  choice("shared-memory", c.shared_memory, {"on", "off"}, "within a node; off: messages");
  table.add({.name = "max-norm",
             .argument = "X",
             .target = &c.max_norm,
             .role = Role::launch,
             .help = "clip to this norm; 0: no clipping",
             .minimum = 0});
  table.add({.name = "rank-weights",
             .argument = "equal|w,w,...",
             .target = &c.rank_weights,
             .role = Role::launch,
             .help = "share of the state that each rank owns",
             .check = [](const std::string& text) { parse_rank_weights(text, 0, 1); }});
  whole("guard-blocks", c.guard_blocks, 0, 1e4,
        "times 10 steps with and 10 without watchdog, incidents and digests, to compare; 0: none");
  table.add({.name = "summary",
             .argument = "FILE.json",
             .target = &c.summary,
             .role = Role::local,
             .help = "the result as JSON"});
}

namespace {

/// A model, its optimizer and gradients that stay in place from step to step: nobody writes them
/// but this program, which the norm proves.
class StepBench {
 public:
  explicit StepBench(const BenchConfig& config);
  StepBench(const StepBench&) = delete;
  StepBench& operator=(const StepBench&) = delete;

  struct Step {
    double accumulate = 0, boundary = 0;  ///< seconds, of this rank
  };
  /// Collective: one committed update.
  Step step(Coordinator& coordinator);
  std::unique_ptr<Coordinator> make_coordinator(CoordinatorOptions options);
  void close();

  const MPI_Comm world = MPI_COMM_WORLD;
  const BenchConfig& config;
  Precision precision;
  AdamOptions options;
  std::unique_ptr<Topology> topology;
  std::unique_ptr<Device> device;
  std::unique_ptr<ShardedAdam> adam;

 private:
  std::optional<double> norm_;
};

StepBench::StepBench(const BenchConfig& c) : config(c), precision(*precision_named(c.precision))
{
  int ranks = 1;
  check_mpi(MPI_Comm_size(world, &ranks), "MPI_Comm_size");
  const int model_parallel = static_cast<int>(c.model_parallel);
  collectively(world, [&] {
    if (ranks % model_parallel != 0)
      throw ConfigError(fmt::format(
          "model-parallel = {} does not divide the number of ranks ({}); start a multiple of {} "
          "ranks or change --model-parallel",
          model_parallel, ranks, model_parallel));
    if (c.elements < c.model_parallel)
      throw ConfigError(
          "elements is below model-parallel (a rank would hold none); raise --elements");
  });
  TopologyOptions topology_options;
  topology_options.model_parallel = model_parallel;
  topology_options.shared_memory = c.shared_memory == "on";
  topology = std::make_unique<Topology>(world, topology_options);
  options.update = c.update == "in_place" ? UpdateMode::in_place : UpdateMode::staged;
  options.fp32_wire = c.wire == "fp32";
  options.reduce_scatter = c.exchange == "reduce_scatter";
  collectively(world, [&] {
    options.rank_weights = parse_rank_weights(c.rank_weights, ranks, model_parallel);
    device = make_device("host", 0);
  });
  collectively(world, [&] {
    ParameterSet parameters;
    parameters.add({.name = "flat",
                    .shape = {c.elements},
                    .precision = precision,
                    .placement = Placement::split});
    adam = std::make_unique<ShardedAdam>(*topology, *device, std::move(parameters), options);
  });
  collectively(world, [&] {
    adam->initialize([&](std::size_t) { return std::vector<float>(c.elements, 0.5f); });
    std::vector<std::byte> gradient(adam->piece(0).elements * bytes_of(precision));
    fill_gradient(gradient, precision, static_cast<std::uint64_t>(topology->rank()));
    device->copy(adam->gradient(0), gradient.data(), gradient.size());
  });
}

std::unique_ptr<Coordinator> StepBench::make_coordinator(CoordinatorOptions coordinator)
{
  coordinator.policy.max_norm = config.max_norm;
  coordinator.policy.update = options.update;
  coordinator.window_samples = static_cast<std::uint64_t>(topology->data_parallel());
  return std::make_unique<Coordinator>(*topology, std::vector<Participant*>{adam.get()},
                                       std::move(coordinator));
}

StepBench::Step StepBench::step(Coordinator& coordinator)
{
  check_mpi(MPI_Barrier(world), "MPI_Barrier");
  const double begin = MPI_Wtime();
  Window window = coordinator.open_window();
  window.add_micro_batch(1.0, 1);
  const double accumulated = MPI_Wtime();
  check_mpi(MPI_Barrier(world), "MPI_Barrier");
  const double start = MPI_Wtime();
  const Outcome outcome = coordinator.step(window);
  const double end = MPI_Wtime();
  if (!outcome.committed() || outcome.grad_norm != norm_.value_or(outcome.grad_norm))
    throw Refusal(
        ExitCode::error,
        fmt::format("step {} is no measurement (norm {}, first norm {}); this is a defect of tutti",
                    outcome.step, outcome.grad_norm, norm_.value_or(0)));
  norm_ = outcome.grad_norm;
  return {accumulated - begin, end - start};
}

void StepBench::close()
{
  adam->close_buffers();
  topology->close();
}

/// What watchdog, incidents and digests every `digest_every` steps cost while nothing goes wrong:
/// the time of a step with them over that of a step without. Collective. Blocks of steps of both
/// kinds are measured by turns; medians are taken of the ordinary steps and of the two that make a
/// check.
double guarded_over_plain(StepBench& bench)
{
  CoordinatorOptions options;
  const std::unique_ptr<Coordinator> plain = bench.make_coordinator(options);
  const auto watch = std::make_unique<Watch>(*bench.topology, watchdog_seconds);
  options.watchdog = &watch->watchdog();
  // Stays empty, as nothing goes wrong.
  options.incident_dir = std::filesystem::temp_directory_path() / "tutti-bench-incidents";
  options.policy.digest_every = guard_block;
  const std::unique_ptr<Coordinator> guarded = bench.make_coordinator(options);
  std::vector<double> without, ordinary, taking, comparing;
  const auto measure = [&](Coordinator& coordinator, std::vector<double>& seconds) {
    seconds.push_back(over_ranks(bench.step(coordinator).boundary, MPI_MAX, bench.world));
  };
  // From here each block of guarded steps holds a whole check: owners take digests with the update
  // that ends in a multiple of digest_every, all ranks compare theirs in the window after it.
  bench.step(*guarded);
  for (std::uint64_t block = 0; block < bench.config.guard_blocks; ++block) {
    for (std::uint64_t s = 0; s < guard_block; ++s) measure(*plain, without);
    for (std::uint64_t s = 0; s + 2 < guard_block; ++s) measure(*guarded, ordinary);
    measure(*guarded, taking);
    measure(*guarded, comparing);
  }
  plain->close();
  guarded->close();
  const double check = median(taking) + median(comparing) - 2 * median(ordinary);
  return (median(ordinary) + check / digest_every) / median(without);
}

/// GB/s of the memory bound: sweeps by all ranks at the same time, each as slow as its slowest
/// rank, like the steps. (A rank's own best would be of a moment when the others were not at it,
/// and a sum of those more than the memory has.)
class CommonBound {
 public:
  explicit CommonBound(MPI_Comm world);
  /// Collective: some more sweeps of each kind; returns the best kind's median of them.
  double measure();
  /// Median of all sweeps of a kind.
  double rate(MemorySweeps::Kind kind) const { return median(rates_[index(kind)]); }

 private:
  static std::size_t index(MemorySweeps::Kind kind) { return static_cast<std::size_t>(kind); }
  MPI_Comm world_;
  std::optional<MemorySweeps> sweeps_;
  std::array<std::vector<double>, MemorySweeps::kinds.size()> rates_;
};

CommonBound::CommonBound(MPI_Comm world) : world_(world)
{
  collectively(world_, [&] { sweeps_.emplace(bound_bytes); });
}

double CommonBound::measure()
{
  double best = 0;
  for (const MemorySweeps::Kind kind : MemorySweeps::kinds) {
    std::vector<double>& rates = rates_[index(kind)];
    for (int i = 0; i < bound_sweeps; ++i) {
      double bytes = 0;
      const double seconds = seconds_together(world_, [&] { bytes = sweeps_->sweep(kind); });
      rates.push_back(over_ranks(bytes, MPI_SUM, world_) / seconds * 1e-9);
    }
    best = std::max(best, median({rates.end() - bound_sweeps, rates.end()}));
  }
  return best;
}

}  // namespace

ExitCode bench_step(const BenchConfig& c)
{
  StepBench bench(c);
  const MPI_Comm world = bench.world;
  const Topology& topology = *bench.topology;
  collectively(world, [&] {
    if (topology.rank() == 0) require_writable(c.summary, "summary");
  });
  const std::unique_ptr<Coordinator> coordinator = bench.make_coordinator({});
  std::vector<double> step_seconds, accumulate_seconds;
  std::array<std::vector<double>, phase_names.size()> phase_seconds;
  CommonBound bound(world);
  std::vector<double> step_bounds;  // right after each step: memory has its moments
  for (std::uint64_t s = 0; s < warm_up_steps + c.steps; ++s) {
    const StepBench::Step mine = bench.step(*coordinator);
    const double slowest = over_ranks(mine.boundary, MPI_MAX, world);
    const double accumulate = over_ranks(mine.accumulate, MPI_MAX, world);
    const PhaseTimes& t = coordinator->times();
    // The last rank to reach a ballot waits for nobody: its time is what the ballot costs; what
    // others spend there beyond it is waiting for a slower rank's kernels.
    const double ballot = over_ranks(t.ballot, MPI_MIN, world),
                 confirm = over_ranks(t.confirm, MPI_MIN, world);
    const double waiting = over_ranks(t.ballot - ballot + t.confirm - confirm, MPI_MAX, world);
    const std::array<double, phase_names.size()> times = {over_ranks(t.exchange, MPI_MAX, world),
                                                          ballot,
                                                          over_ranks(t.stage, MPI_MAX, world),
                                                          over_ranks(t.gather, MPI_MAX, world),
                                                          confirm,
                                                          over_ranks(t.publish, MPI_MAX, world),
                                                          waiting};
    if (s < warm_up_steps) continue;
    step_seconds.push_back(slowest);
    step_bounds.push_back(bound.measure());
    accumulate_seconds.push_back(accumulate);
    for (std::size_t p = 0; p < times.size(); ++p) phase_seconds[p].push_back(times[p]);
  }

  const double seconds = median(step_seconds);
  const double value = static_cast<double>(bytes_of(bench.precision));
  const double wire = bench.options.fp32_wire || bench.options.reduce_scatter ? 4 : value;
  const double own = bytes_per_parameter(topology, !bench.options.reduce_scatter, wire, value);
  const double bytes = over_ranks(own, MPI_SUM, world) / topology.size();
  const double elements = static_cast<double>(c.elements);
  const auto rate_of = [&](double taken) { return bytes * elements / taken / 1e9; };
  const double moved = rate_of(seconds);
  std::vector<double> fractions;
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < step_seconds.size(); ++s) {
    fractions.push_back(rate_of(step_seconds[s]) / step_bounds[s]);
    steps.push_back(
        {{"step_seconds", step_seconds[s]}, {"bound_gigabytes_per_second", step_bounds[s]}});
  }
  const double fraction = median(fractions);
  const double copy = bound.rate(MemorySweeps::Kind::copy),
               multiply = bound.rate(MemorySweeps::Kind::multiply),
               triad = bound.rate(MemorySweeps::Kind::triad),
               best = std::max({copy, multiply, triad});
  std::array<double, phase_names.size()> phases{};
  for (std::size_t p = 0; p < phases.size(); ++p) phases[p] = median(phase_seconds[p]);

  nlohmann::ordered_json share = nlohmann::ordered_json::object();
  for (std::size_t p = 0; p < phases.size(); ++p) share[phase_names[p]] = phases[p] / seconds;
  nlohmann::ordered_json result = {
      {"elements", c.elements},
      {"ranks", topology.size()},
      {"model_parallel", c.model_parallel},
      {"precision", c.precision},
      {"wire", wire == 4 ? "fp32" : c.precision},
      {"update", c.update},
      {"exchange", bench.adam->exchange_description()},
      {"device", bench.device->name()},
      {"step_seconds", seconds},
      {"accumulate_seconds", median(accumulate_seconds)},
      {"parameters_per_second", elements / seconds},
      {"bytes_per_parameter", bytes},
      {"gigabytes_per_second", moved},
      {"bound_gigabytes_per_second", best},
      {"bounds", {{"copy", copy}, {"multiply", multiply}, {"triad", triad}}},
      {"fraction_of_bound", fraction},
      {"steps", steps},
      {"phase_share", share}};
  coordinator->close();
  if (c.guard_blocks > 0) result["guarded_over_plain"] = guarded_over_plain(bench);
  collectively(world, [&] {
    if (topology.rank() == 0 && !c.summary.empty())
      write_text_file(c.summary, result.dump(2) + "\n");
  });
  if (topology.rank() == 0) {
    fmt::print(
        "{} parameters, {} ranks ({} data-parallel x {} model-parallel), model {}, wire {}, {} "
        "update\n",
        c.elements, topology.size(), topology.data_parallel(), c.model_parallel, c.precision,
        wire == 4 ? "fp32" : c.precision, c.update);
    fmt::print("{}, {}\n", bench.device->name(), bench.adam->exchange_description());
    fmt::print(
        "step            {:9.2f} ms   {:.0f} million parameters/s (median of {}, slowest rank)\n",
        seconds * 1e3, elements / seconds / 1e6, c.steps);
    fmt::print("accumulate      {:9.2f} ms   before the step, not part of it\n",
               median(accumulate_seconds) * 1e3);
    fmt::print("bytes moved     {:9.1f} a parameter, {:.1f} GB/s over all ranks\n", bytes, moved);
    fmt::print(
        "memory bound    {:9.1f} GB/s by all ranks at once (copy {:.1f}, multiply {:.1f}, triad "
        "{:.1f}; medians of {})\n",
        best, copy, multiply, triad, bound_sweeps * c.steps);
    fmt::print("fraction        {:9.2f} of the memory bound at the time of each step (median)\n",
               fraction);
    for (std::size_t p = 0; p < phases.size(); ++p)
      fmt::print("  {:<15} {:7.2f} ms {:6.2f} %\n", phase_names[p], phases[p] * 1e3,
                 100 * phases[p] / seconds);
    if (c.guard_blocks > 0)
      fmt::print(
          "guards          {:9.4f} of a step without watchdog, incidents and digests every {} "
          "steps ({} blocks)\n",
          result["guarded_over_plain"].get<double>(), digest_every, c.guard_blocks);
  }
  bench.close();
  return ExitCode::ok;
}

}  // namespace tutti::apps
