// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The step boundary over real ranks: one outcome whatever goes wrong on whichever rank, nothing
// mutated without Commit, the same bits for every plan and path. Runs with 1 to 8 ranks; gradients
// are made from global indices, so that every layout sees the same numbers.
#include "tutti/coordinator.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "catch.hpp"
#include "counted_memory.hpp"
#include "far_device.hpp"
#include "mpi_test.hpp"
#include "nccl_double.hpp"
#include "tutti/digest.hpp"
#include "tutti/half.hpp"
#include "tutti/kokkos_runtime.hpp"
#include "tutti/sharded_adam.hpp"
#include "tutti/transports.hpp"

using namespace tutti;
using tutti::test::agreed;
using tutti::test::degrees;
using tutti::test::nccl_double;
using tutti::test::world_rank;
using tutti::test::world_size;

// Every collective that tutti issues is counted through the profiling interface.
namespace {
std::uint64_t collective_calls = 0;
}
// The call of this number, counted from the next one on, fails; 0: none does.
std::uint64_t failing_reduction = 0;
extern "C" int MPI_Allreduce(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c)
{
  ++collective_calls;
  if (failing_reduction != 0 && --failing_reduction == 0) return MPI_ERR_OTHER;
  return PMPI_Allreduce(s, r, n, t, o, c);
}
extern "C" int MPI_Barrier(MPI_Comm c)
{
  ++collective_calls;
  return PMPI_Barrier(c);
}
extern "C" int MPI_Bcast(void* b, int n, MPI_Datatype t, int root, MPI_Comm c)
{
  ++collective_calls;
  return PMPI_Bcast(b, n, t, root, c);
}

namespace {

/// In a CUDA build the stand-in waits for CUDA's own streams, and those need a GPU.
bool nccl_double_runs()
{
#ifdef NCCL_DOUBLE_ON_CUDA
  return cuda_device_count() > 0;
#else
  return true;
#endif
}

/// That of a FarDevice is open to everybody; that of a GPU is as this MPI says.
bool mpi_reaches_far_memory()
{
  static const bool reaches = !tutti::test::on_cuda() || gpu_aware_mpi();
  return reaches;
}

ParameterSet parameter_set()
{
  ParameterSet set;
  set.add({"split0", {37, 401}, Precision::fp16, Placement::split, 0, {}});
  set.add({"split1", {3, 5003}, Precision::bf16, Placement::split, 1, {}});
  set.add({"bias", {10}, Precision::fp16, Placement::replicated, 0, ReplicaGradient::identical});
  set.add({"norm", {9000}, Precision::fp32, Placement::replicated, 0, ReplicaGradient::partial});
  return set;
}

/// A small number from identity: multiples of 2^-8, so that sums of some of them are exact in fp16.
float number(std::uint64_t a, std::uint64_t b)
{
  return static_cast<float>(static_cast<std::int64_t>(mix64(a, b) % 65) - 32) / 256;
}

struct RunOptions {
  int model_parallel = 1;
  bool shared_memory = true;
  int domain_size = 0;
  std::vector<double> weights;
  UpdateMode update = UpdateMode::staged;
  std::uint32_t micro_batches = 1;
  double max_norm = 0;
  bool scaler = false;
  std::uint64_t growth_interval = 2000;
  std::uint64_t digest_every = 0;
  SamplePolicy samples = SamplePolicy::replay;
  std::vector<std::string> faults;
  bool portable = false, far = false, nccl = false, gpu_aware_mpi = false, ema = false,
       reduce_scatter = false, fp32_wire = false;
  std::size_t optimizers = 1;
  EvidenceSource evidence{};
};

/// A job: topology, one or more ShardedAdam and a coordinator.
struct Run {
  explicit Run(const RunOptions& o)
      : options(o),
        topology(MPI_COMM_WORLD, {o.model_parallel, o.shared_memory, o.domain_size}),
        device(o.far        ? test::make_far_device(topology.rank(), o.gpu_aware_mpi)
               : o.portable ? make_portable_host_device()
                            : make_host_device())
  {
    ::setenv("TUTTI_GPU_AWARE_MPI", o.gpu_aware_mpi ? "on" : "off", 1);
    nccl_double().copy = [this](void* to, const void* from, std::size_t bytes) {
      device->copy(to, from, bytes);
    };
    std::vector<Participant*> participants;
    for (std::size_t i = 0; i < o.optimizers; ++i) {
      AdamOptions adam;
      adam.name = i == 0 ? "adam" : "adam" + std::to_string(i);
      adam.decoupled = true;
      adam.weight_decay = 0.01;
      adam.update = o.update;
      adam.micro_batches = o.micro_batches;
      adam.rank_weights = o.weights;
      adam.ema_decay = o.ema ? 0.99 : 0;
      adam.reduce_scatter = o.reduce_scatter;
      adam.fp32_wire = o.fp32_wire;
      adam.nccl = o.nccl;
      optimizers.push_back(std::make_unique<ShardedAdam>(topology, *device, parameters(), adam));
      optimizers.back()->initialize([&](std::size_t p) {
        const auto& spec = optimizers.back()->parameter_set()[p];
        std::size_t elements = 1;
        for (std::size_t extent : spec.shape) elements *= extent;
        std::vector<float> values(elements);
        for (std::size_t e = 0; e < elements; ++e) values[e] = number(1000 + p + 10 * i, e) * 4;
        return values;
      });
      participants.push_back(optimizers.back().get());
    }
    CoordinatorOptions c;
    c.window_samples = 24;
    c.micro_batches = o.micro_batches;
    c.epoch_samples = 240;
    c.policy.update = o.update;
    c.policy.max_norm = o.max_norm;
    c.policy.samples = o.samples;
    c.policy.ema = o.ema;
    c.policy.scaling.enabled = o.scaler;
    c.policy.scaling.initial = 4;
    c.policy.scaling.growth_interval = o.growth_interval;
    c.policy.digest_every = o.digest_every;
    c.evidence = o.evidence;
    std::vector<Fault> faults;
    for (const std::string& fault : o.faults) faults.push_back(parse_fault(fault));
    c.faults = FaultPlan(faults);
    coordinator = std::make_unique<Coordinator>(topology, participants, c);
  }
  ~Run()
  {
    coordinator->close();
    for (auto& optimizer : optimizers) optimizer->close_buffers();
    topology.close();
  }

  ParameterSet parameters() const
  {
    ParameterSet set = parameter_set();
    if (!options.reduce_scatter) return set;
    ParameterSet without_partial;
    for (std::size_t p = 0; p < 3; ++p) without_partial.add(set[p]);
    return without_partial;
  }

  /// Writes the gradients of a micro-batch: functions of step, data rank, micro-batch and global
  /// element.
  void fill(ShardedAdam& adam, const Window& window, std::uint32_t micro)
  {
    for (std::size_t p = 0; p < adam.parameters(); ++p) {
      const Piece& piece = adam.piece(p);
      const bool partial = adam.parameter_set()[p].gradient == ReplicaGradient::partial &&
                           adam.parameter_set()[p].placement == Placement::replicated;
      const std::uint64_t who = partial ? static_cast<std::uint64_t>(topology.rank()) + 100
                                        : static_cast<std::uint64_t>(topology.data_rank());
      const std::uint64_t seed = mix64(mix64(window.interval().begin, who), mix64(micro, p));
      const Precision precision = adam.parameter_set()[p].precision;
      std::vector<std::byte> values(piece.elements * bytes_of(precision));
      for (std::size_t e = 0; e < piece.elements; ++e)
        store_element(
            values.data(), precision, e,
            number(seed, piece.global_index(e)) * static_cast<float>(window.loss_scale()));
      device->copy(adam.gradient(p), values.data(), values.size());
    }
  }

  Outcome attempt()
  {
    Window window = coordinator->open_window();
    for (std::uint32_t micro = 0; micro < window.micro_batches(); ++micro) {
      for (auto& optimizer : optimizers) fill(*optimizer, window, micro);
      const std::uint64_t samples = window.positions(micro).size();
      window.add_micro_batch(0.5 * static_cast<double>(samples), samples);
    }
    return coordinator->step(window);
  }

  std::uint64_t digest()
  {
    std::vector<Participant*> participants;
    for (auto& optimizer : optimizers) participants.push_back(optimizer.get());
    return state_digest(participants, MPI_COMM_WORLD);
  }

  /// Of this rank's published weights, by global element: equal for equal weights.
  std::uint64_t weights_hash()
  {
    std::uint64_t hash = 0;
    for (auto& optimizer : optimizers)
      for (std::size_t p = 0; p < optimizer->parameters(); ++p) {
        const Precision precision = optimizer->parameter_set()[p].precision;
        std::vector<std::byte> values(optimizer->piece(p).elements * bytes_of(precision));
        device->copy(values.data(), optimizer->weights(p), values.size());
        for (std::size_t e = 0; e < optimizer->piece(p).elements; ++e)
          hash = mix64(hash, bits_of(load_element(values.data(), precision, e)));
      }
    return hash;
  }

  RunOptions options;
  Topology topology;
  std::unique_ptr<Device> device;
  std::vector<std::unique_ptr<ShardedAdam>> optimizers;
  std::unique_ptr<Coordinator> coordinator;
};

void check_same_everywhere(const Outcome& outcome)
{
  CHECK(agreed(outcome.step));
  CHECK(agreed(outcome.attempt));
  CHECK(agreed(static_cast<std::uint64_t>(outcome.verdict.reason)));
  CHECK(agreed(std::bit_cast<std::uint64_t>(outcome.grad_norm)));
  CHECK(agreed(std::bit_cast<std::uint64_t>(outcome.clip)));
  CHECK(agreed(std::bit_cast<std::uint64_t>(outcome.loss)));
  CHECK(agreed(outcome.offender.element));
  CHECK(agreed(outcome.offender.rank));
  CHECK(agreed(outcome.message));
}

std::string on_rank(const std::string& kind, int rank, const std::string& rest)
{
  return kind + ":rank=" + std::to_string(rank) + "," + rest;
}

}  // namespace

TEST_CASE("same bits for any shard plan, path, device and update mode")
{
  for (int m : degrees()) {
    RunOptions base;
    base.model_parallel = m;
    base.micro_batches = 2;
    base.max_norm = 0.5;
    base.ema = true;
    std::map<std::string, RunOptions> variants;
    variants["plain"] = base;
    auto vary = [&](const std::string& name) -> RunOptions& { return variants[name] = base; };
    vary("messages").shared_memory = false;
    vary("two a domain").domain_size = 2;
    vary("in place").update = UpdateMode::in_place;
    if (kokkos_is_running()) vary("portable kernels").portable = true;
    vary("far memory").far = true;
    // Every other rank is far from its memory, as in a job of CUDA and host ranks.
    vary("mixed devices").far = world_rank() % 2 == 1;
    if (nccl_double_runs()) {
      RunOptions& by_nccl = vary("NCCL");
      by_nccl.far = by_nccl.nccl = true;
      RunOptions& by_nccl_in_place = vary("NCCL, in place");
      by_nccl_in_place = by_nccl;
      by_nccl_in_place.update = UpdateMode::in_place;
    }
    RunOptions& by_gpu_aware_mpi = vary("GPU-aware MPI");
    by_gpu_aware_mpi.far = true;
    by_gpu_aware_mpi.gpu_aware_mpi = mpi_reaches_far_memory();
    by_gpu_aware_mpi.shared_memory = false;
    // A GPU-aware rank beside ranks on the host.
    RunOptions& mixed_gpu_aware = vary("GPU-aware MPI, mixed devices");
    mixed_gpu_aware = by_gpu_aware_mpi;
    mixed_gpu_aware.far = world_rank() % 2 == 1;
    RunOptions& far_messages = vary("far memory, messages, in place");
    far_messages.far = true;
    far_messages.shared_memory = false;
    far_messages.update = UpdateMode::in_place;
    std::vector<double> uneven(static_cast<std::size_t>(world_size()), 1.0);
    for (std::size_t r = 0; r < uneven.size(); ++r) uneven[r] = static_cast<double>(r % 3) + 0.5;
    vary("uneven").weights = uneven;
    std::vector<double> one(uneven.size(),
                            0.0);  // the first data-parallel rank of each slot owns everything
    for (int r = 0; r < m; ++r) one[static_cast<std::size_t>(r)] = 1;
    vary("one owner").weights = one;
    RunOptions& all = vary("one owner, messages, in place");
    all.weights = one;
    all.shared_memory = false;
    all.update = UpdateMode::in_place;

    std::optional<std::uint64_t> expected, expected_norm;
    for (const auto& [name, options] : variants) {
      INFO(name << ", model-parallel " << m);
      const std::size_t groups_before = nccl_double().groups;
      Run run(options);
      Outcome outcome;
      for (int i = 0; i < 4; ++i) {
        outcome = run.attempt();
        CHECK(outcome.committed());
        check_same_everywhere(outcome);
      }
      CHECK(outcome.clip < 1);
      // Initial weights, then contributions and weights of four steps.
      const std::size_t groups = options.nccl && world_size() > 1 ? 9 : 0;
      CHECK(nccl_double().groups - groups_before == groups);
      const std::uint64_t digest = run.digest();
      if (options.far && (options.nccl || (options.gpu_aware_mpi && world_size() > 1)))
        if (const auto* far = dynamic_cast<const FarDevice*>(run.device.get()))
          CHECK(far->pinned() == 0);  // nothing lies on the host
      if (!expected) expected = digest;
      CHECK(digest == *expected);
      const auto norm = std::bit_cast<std::uint64_t>(outcome.grad_norm);
      if (!expected_norm) expected_norm = norm;
      CHECK(norm == *expected_norm);
    }
  }
}

TEST_CASE("one micro-batch in its own precision or over an fp32 wire: the same bits")
{
  for (int m : degrees()) {
    RunOptions options;
    options.model_parallel = m;
    Run narrow(options);
    options.fp32_wire = true;
    Run wide(options);
    for (int i = 0; i < 3; ++i) {
      CHECK(narrow.attempt().committed());
      CHECK(wide.attempt().committed());
    }
    CHECK(narrow.digest() == wide.digest());
  }
}

TEST_CASE("reduce_scatter commits and every replica holds the owners' weights")
{
  for (int m : degrees()) {
    RunOptions options;
    options.model_parallel = m;
    options.reduce_scatter = true;
    Run run(options);
    for (int i = 0; i < 3; ++i) check_same_everywhere(run.attempt());
    CHECK(run.coordinator->control().step == 3);
    // Ranks of one slot hold equal weights.
    std::uint64_t range[2] = {run.weights_hash(), ~run.weights_hash()};
    PMPI_Allreduce(MPI_IN_PLACE, range, 2, MPI_UINT64_T, MPI_MIN, run.topology.data_axis());
    CHECK(range[0] == ~range[1]);
  }
}

TEST_CASE("the norm is the serial one, and the clipped norm is at most max_norm")
{
  RunOptions options;
  options.max_norm = 0.25;
  Run run(options);
  const Outcome outcome = run.attempt();
  // Sum over data ranks, in rank order, of the same numbers; 2 x the exact integers in units of
  // 1/256.
  double sum_of_squares = 0;
  const ParameterSet set = parameter_set();
  for (std::size_t p = 0; p < set.size(); ++p) {
    std::size_t elements = 1;
    for (std::size_t extent : set[p].shape) elements *= extent;
    for (std::size_t e = 0; e < elements; ++e) {
      float sum = 0;
      for (int d = 0; d < world_size(); ++d) {
        const std::uint64_t who =
            p == 3 ? static_cast<std::uint64_t>(d) + 100 : static_cast<std::uint64_t>(d);
        sum += number(mix64(mix64(0, who), mix64(0, p)), e);
      }
      sum_of_squares += static_cast<double>(sum) * static_cast<double>(sum);
    }
  }
  CHECK(outcome.grad_norm == std::sqrt(sum_of_squares));
  CHECK(outcome.grad_norm * outcome.clip <= 0.25);
  CHECK(outcome.grad_norm * outcome.clip > 0.2499);
  CHECK(outcome.loss == 0.5);
  CHECK(outcome.samples == 24);
}

TEST_CASE(
    "a nonfinite gradient on any rank, micro-batch and optimizer: all skip, nothing moves, the "
    "window returns")
{
  for (int m : degrees())
    for (int rank = 0; rank < world_size(); ++rank)
      for (bool scaler : {false, true})
        for (const char* value : {"inf", "-inf", "nan"}) {
          RunOptions options;
          options.model_parallel = m;
          options.scaler = scaler;
          options.optimizers = 2;
          options.micro_batches = rank % 2 ? 1 : 3;
          options.max_norm = 0.5;  // clipping must not repair it
          const std::uint32_t micro = options.micro_batches - 1;
          options.faults = {on_rank("nonfinite", rank,
                                    "attempt=2,param=*,element=4099,optimizer=1,micro=" +
                                        std::to_string(micro) + ",value=" + value)};
          Run run(options);
          Run clean([&] {
            RunOptions o = options;
            o.faults.clear();
            return o;
          }());
          CHECK(run.attempt().committed());
          const std::uint64_t before = run.digest(), weights = run.weights_hash();
          const ControlState control = run.coordinator->control();
          const std::uint64_t calls = collective_calls;
          const Outcome outcome = run.attempt();
          CHECK(agreed(collective_calls - calls));
          CHECK(outcome.verdict.kind == VerdictKind::skip);
          CHECK(outcome.verdict.reason == Reason::gradient);
          CHECK(std::isnan(outcome.grad_norm));
          CHECK(outcome.offender.stage == static_cast<std::uint32_t>(Stage::micro_batch));
          CHECK(outcome.offender.rank == static_cast<std::uint32_t>(rank));
          CHECK(outcome.offender.participant == 1);
          CHECK(outcome.offender.parameter == 0);
          CHECK(outcome.offender.micro == micro);
          check_same_everywhere(outcome);
          CHECK(run.digest() == before);
          CHECK(run.weights_hash() == weights);
          const ControlState& after = run.coordinator->control();
          CHECK(after.step == control.step);
          CHECK(after.clocks == control.clocks);
          CHECK(after.loss_scale == (scaler ? control.loss_scale / 2 : control.loss_scale));
          const Outcome replay = run.attempt();
          CHECK(replay.committed());
          CHECK(replay.window == outcome.window);
          for (int i = 0; i < 2; ++i) clean.attempt();
          if (!scaler) CHECK(run.digest() == clean.digest());
        }
}

TEST_CASE("dropped windows are listed and never come back")
{
  RunOptions options;
  options.samples = SamplePolicy::drop;
  options.faults = {on_rank("nonfinite", world_size() - 1, "step=1,value=nan")};
  options.scaler = false;
  Run run(options);
  CHECK(run.attempt().committed());
  const Outcome skipped = run.attempt();
  CHECK(skipped.verdict.reason == Reason::gradient);
  const Outcome next = run.attempt();
  CHECK(next.window.begin == skipped.window.end);
  CHECK(run.coordinator->control().ledger.dropped == std::vector<Interval>{{24, 72}});
}

TEST_CASE("a window that stays bad halts the run on all ranks after repeat_limit attempts")
{
  RunOptions options;
  options.faults = {on_rank("nonfinite", world_size() - 1, "step=1,value=inf")};
  Run run(options);
  CHECK(run.attempt().committed());
  const std::uint64_t before = run.digest();
  CHECK(run.attempt().verdict.kind == VerdictKind::skip);
  CHECK(run.attempt().verdict.kind == VerdictKind::skip);
  std::string message;
  try {
    run.attempt();
  } catch (const Halt& halt) {
    message = halt.what();
    CHECK(halt.outcome.verdict.reason == Reason::repeat_limit);
  }
  CHECK(message.find("repeat_limit") != std::string::npos);
  CHECK(agreed(message));
  CHECK(run.digest() == before);
  CHECK_THROWS_AS(run.coordinator->open_window(), InvalidArgument);
  CHECK_THROWS_AS(run.coordinator->boundary(), InvalidArgument);
}

TEST_CASE("an exception on one rank in any phase ends on all ranks with the same typed error")
{
  for (int m : degrees())
    for (UpdateMode mode : {UpdateMode::staged, UpdateMode::in_place})
      for (bool shared : {true, false})
        for (const char* phase : {"window", "exchange", "ballot", "stage", "gather", "confirm"})
          for (int rank : {0, world_size() - 1}) {
            INFO(phase << " on rank " << rank << ", model-parallel " << m);
            RunOptions options;
            options.model_parallel = m;
            options.update = mode;
            options.shared_memory = shared;
            options.faults = {on_rank("throw", rank, std::string("step=1,phase=") + phase)};
            Run run(options);
            CHECK(run.attempt().committed());
            const std::uint64_t before = run.digest();
            const std::uint64_t calls = collective_calls;
            std::string message;
            Reason reason = Reason::none;
            try {
              run.attempt();
            } catch (const Halt& halt) {
              message = halt.what();
              reason = halt.outcome.verdict.reason;
              CHECK(halt.outcome.failure.rank == static_cast<std::uint32_t>(rank));
            }
            CHECK(agreed(collective_calls - calls));
            CHECK(message.find(phase) != std::string::npos);
            CHECK(message.find("planned exception") != std::string::npos);
            CHECK(agreed(message));
            const std::string name = phase;
            const bool early = name == "window" || name == "exchange" || name == "ballot";
            CHECK(reason == (early                        ? Reason::window_failed
                             : mode == UpdateMode::staged ? Reason::update_failed
                                                          : Reason::partial_update));
            if (early || mode == UpdateMode::staged) CHECK(run.digest() == before);
          }
}

TEST_CASE("a failure in the caller's own code is a flag, not a lone throw")
{
  Run run({});
  Window window = run.coordinator->open_window();
  const int last = world_size() - 1;
  if (run.topology.rank() == last) window.fail(42, "sensor 7 is gone");
  std::string message;
  try {
    run.coordinator->step(window);
  } catch (const Halt& halt) {
    message = halt.what();
    CHECK(halt.outcome.failure.code == 42);
    CHECK(halt.outcome.failure.rank == static_cast<std::uint32_t>(last));
    CHECK(halt.outcome.verdict.reason == Reason::window_failed);
  }
  CHECK(message.find("sensor 7 is gone") != std::string::npos);
  CHECK(agreed(message));
}

TEST_CASE("a loss scale that drifts on one rank halts all, naming field and rank")
{
  if (world_size() == 1) return;  // nobody to disagree with
  for (int rank = 0; rank < world_size(); ++rank) {
    RunOptions options;
    options.scaler = true;
    options.faults = {on_rank("scale", rank, "step=1,factor=2")};
    Run run(options);
    CHECK(run.attempt().committed());
    std::string message;
    try {
      run.attempt();
    } catch (const Halt& halt) {
      message = halt.what();
      CHECK(halt.outcome.verdict.reason == Reason::control_mismatch);
      CHECK(halt.outcome.verdict.field == AgreedField::loss_scale);
      if (world_size() > 2) CHECK(halt.outcome.verdict.rank == static_cast<std::uint32_t>(rank));
    }
    CHECK(message.find("loss_scale") != std::string::npos);
    CHECK(agreed(message));
  }
}

TEST_CASE("a loss scale that grows, or backs off in between, leaves no trace in the state")
{
  for (int m : degrees()) {
    RunOptions options;
    options.model_parallel = m;
    options.max_norm = 0.5;
    Run plain(options);
    options.scaler = true;
    options.growth_interval = 1;
    options.faults = {on_rank("nonfinite", world_size() - 1, "attempt=3,value=inf")};
    Run scaled(options);
    // Powers of two, and fp16 holds all that is multiplied by them.
    for (const double scale : {4, 8, 16, 8, 16}) {
      const Outcome outcome = scaled.attempt();
      CHECK(outcome.loss_scale == scale);
      if (!outcome.committed()) continue;
      const Outcome expected = plain.attempt();
      CHECK(outcome.grad_norm == expected.grad_norm);
      CHECK(outcome.clip == expected.clip);
      CHECK(outcome.clip < 1);
      CHECK(scaled.digest() == plain.digest());
    }
    CHECK(plain.coordinator->control().step == 4);
  }
}

TEST_CASE("a nonfinite loss alone skips without back-off")
{
  RunOptions options;
  options.scaler = true;
  options.faults = {on_rank("loss", world_size() - 1, "attempt=1,value=nan")};
  Run run(options);
  const std::uint64_t before = run.digest();
  const Outcome outcome = run.attempt();
  CHECK(outcome.verdict.kind == VerdictKind::skip);
  CHECK(outcome.verdict.reason == Reason::loss);
  CHECK(outcome.ranks_with_nonfinite_loss == 1);
  CHECK(std::isnan(outcome.loss));
  CHECK(run.coordinator->control().loss_scale == 4);
  CHECK(run.digest() == before);
  check_same_everywhere(outcome);
}

TEST_CASE("a finite gradient whose update overflows is caught before anything moves")
{
  for (int rank = 0; rank < world_size(); ++rank) {
    RunOptions options;
    options.faults = {on_rank("update", rank, "attempt=2")};
    Run run(options);
    CHECK(run.attempt().committed());
    const std::uint64_t before = run.digest(), weights = run.weights_hash();
    const Outcome outcome = run.attempt();
    const bool owns = !run.optimizers[0]->plan().shard(rank).empty();
    CHECK(outcome.committed() == !owns);
    if (owns) {
      CHECK(outcome.verdict.reason == Reason::update);
      CHECK(outcome.offender.stage == static_cast<std::uint32_t>(Stage::update));
      CHECK(outcome.offender.rank == static_cast<std::uint32_t>(rank));
      CHECK(run.digest() == before);
      CHECK(run.weights_hash() == weights);
    }
    check_same_everywhere(outcome);
  }
}

TEST_CASE("in place, a nonfinite update is a partial update: all halt")
{
  RunOptions options;
  options.update = UpdateMode::in_place;
  options.faults = {on_rank("update", 0, "attempt=1")};
  Run run(options);
  std::string message;
  try {
    run.attempt();
  } catch (const Halt& halt) {
    message = halt.what();
    CHECK(halt.outcome.verdict.reason == Reason::partial_update);
  }
  CHECK(message.find("partial_update") != std::string::npos);
  CHECK(agreed(message));
}

TEST_CASE("gradients that are absent: zero where some rank has one, untouched where none has")
{
  for (int m : degrees()) {
    RunOptions options;
    options.model_parallel = m;
    Run run(options);
    ShardedAdam& adam = *run.optimizers[0];
    CHECK(run.attempt().committed());  // stale gradients are in the buffers now
    Window window = run.coordinator->open_window();
    if (run.topology.data_rank() == 0) {
      run.fill(adam, window, 0);
      adam.set_absent(1);
      window.add_micro_batch(12, 12);
    } else if (run.topology.data_rank() == 1) {
      run.fill(adam, window, 0);
      for (std::size_t p : {0, 1, 3}) adam.set_absent(p);
      window.add_micro_batch(12, 12);
    }  // the others have no micro-batch at all
    const std::vector<ParameterClock> before = run.coordinator->control().clocks;
    const Outcome outcome = run.coordinator->step(window);
    CHECK(outcome.committed());
    CHECK(outcome.loss == 1);
    CHECK(outcome.samples == (run.topology.data_parallel() > 1 ? 24u : 12u));
    const std::vector<ParameterClock>& after = run.coordinator->control().clocks;
    CHECK(after[0].steps == 2);
    CHECK(after[1] == before[1]);
    CHECK(after[2].steps == 2);
    check_same_everywhere(outcome);
  }
}

TEST_CASE("a committed step allocates nothing")
{
  for (UpdateMode mode : {UpdateMode::staged, UpdateMode::in_place})
    for (bool shared : {true, false}) {
      RunOptions options;
      options.update = mode;
      options.shared_memory = shared;
      options.micro_batches = 2;
      options.max_norm = 1;
      options.scaler = options.ema = true;
      options.digest_every = 2;
      Run run(options);
      for (int step = 0; step < 6; ++step) {
        Window window = run.coordinator->open_window();
        std::uint64_t during = 0;
        for (std::uint32_t micro = 0; micro < window.micro_batches(); ++micro) {
          run.fill(*run.optimizers[0], window, micro);
          const std::uint64_t before = test::allocations;
          window.add_micro_batch(1, 3);
          during += test::allocations - before;
        }
        const std::uint64_t before = test::allocations;
        const bool committed = run.coordinator->step(window).committed();
        during += test::allocations - before;
        CHECK(committed);
        INFO("step " << step << ", shared " << shared);
        if (step > 2) CHECK(during == 0);  // the first ones make room, in two control states
      }
    }
}

TEST_CASE("a rank that runs out of memory anywhere in a step: one outcome for all")
{
  if (world_size() > 3) return;
  struct Result {
    std::optional<Verdict> verdict;
    std::uint64_t allocations = 0;  ///< of the victim in its step
  };
  // The first step of a run, which still makes room; its n-th allocation on `victim` fails.
  const auto step_without_memory = [](Run& run, int victim, std::uint64_t n, bool stays_lost) {
    Window window = run.coordinator->open_window();
    run.fill(*run.optimizers[0], window, 0);
    window.add_micro_batch(1, 3);
    Result result;
    const std::uint64_t before = test::allocations;
    test::memory_stays_lost = stays_lost;
    test::failing_allocation = run.topology.rank() == victim ? n : 0;
    try {
      result.verdict = run.coordinator->step(window).verdict;
    } catch (const Halt& halt) {
      result.verdict = halt.outcome.verdict;
    } catch (const std::bad_alloc&) {
      // Without memory to say what happened. That it is a halt is seen below.
    }
    test::failing_allocation = 0;
    result.allocations = test::allocations - before;
    MPI_Bcast(&result.allocations, 1, MPI_UINT64_T, victim, MPI_COMM_WORLD);
    return result;
  };
  const auto check_one_outcome = [&](const RunOptions& options, int victim, std::uint64_t n,
                                     bool stays_lost) {
    INFO("allocation " << n << " of rank " << victim << " fails, and "
                       << (stays_lost ? "all after it" : "no other"));
    Run run(options);
    const std::uint64_t before = run.digest();
    Result result = step_without_memory(run, victim, n, stays_lost);
    if (!result.verdict) {
      CHECK(run.topology.rank() == victim);
      CHECK_THROWS_AS(run.coordinator->open_window(), InvalidArgument);
      result.verdict = Verdict{VerdictKind::halt, Reason::window_failed, {}, 0, false};
    }
    CHECK(agreed(static_cast<std::uint64_t>(result.verdict->kind)));
    CHECK(agreed(static_cast<std::uint64_t>(result.verdict->reason)));
    CHECK(agreed(run.coordinator->control().digest()));
    if (result.verdict->kind != VerdictKind::commit) CHECK(run.digest() == before);
    return result.allocations;
  };

  RunOptions good;
  good.digest_every = 1;
  for (int victim : {0, world_size() - 1})
    for (bool stays_lost : {false, true}) {
      std::uint64_t n = 1;
      while (check_one_outcome(good, victim, n, stays_lost) >= n) ++n;
      CHECK(n > 1);
    }

  // A bad window, until its incident becomes JSON, a library that ends the process when it has no
  // memory to tidy up with.
  RunOptions bad;
  bad.samples = SamplePolicy::drop;
  bad.faults = {on_rank("nonfinite", 0, "step=0,param=bias,value=inf")};
  std::uint64_t told = 0;
  bad.evidence = [&](Interval) {
    told = test::allocations;
    return Evidence{};
  };
  {
    Run run(bad);
    const std::uint64_t before = test::allocations;
    run.attempt();
    told -= before;
  }
  MPI_Bcast(&told, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  for (std::uint64_t n = 1, until = told; n <= until; ++n) check_one_outcome(bad, 0, n, false);
}

TEST_CASE("uneven sample counts give the exact weighted mean")
{
  // Data rank d contributes d + 1 samples of gradient d + 1 each: mean = sum (d+1)^2 / sum (d+1).
  RunOptions options;
  Run run(options);
  ShardedAdam& adam = *run.optimizers[0];
  Window window = run.coordinator->open_window();
  const auto n = static_cast<float>(run.topology.data_rank() + 1);
  for (std::size_t p = 0; p < adam.parameters(); ++p)
    for (std::size_t e = 0; e < adam.piece(p).elements; ++e)
      store_element(
          adam.gradient(p), adam.parameter_set()[p].precision, e,
          p == 3 && e == 0 ? n * n * static_cast<float>(window.gradient_scale()) * 24 : 0.0f);
  window.add_micro_batch(n, static_cast<std::uint64_t>(n));
  const Outcome outcome = run.coordinator->step(window);
  double squares = 0, sum = 0;
  for (int d = 1; d <= world_size(); ++d) {
    squares += d * d;
    sum += d;
  }
  CHECK(outcome.samples == static_cast<std::uint64_t>(sum));
  CHECK(std::abs(outcome.grad_norm - squares * 24 / sum) <= 1e-12 * outcome.grad_norm);
}

TEST_CASE("a flipped bit in a replica is in the weights that are read, not in the owners' state")
{
  RunOptions options;
  options.faults = {
      on_rank("bitflip", world_size() - 1, "attempt=2,param=split0,element=40000,bit=9")};
  options.shared_memory = false;  // every rank has a replica of its own
  Run run(options);
  CHECK(run.attempt().committed());
  const std::uint64_t before = run.digest(), weights = run.weights_hash();
  Window window = run.coordinator->open_window();
  CHECK((run.weights_hash() != weights) == (run.topology.rank() == world_size() - 1));
  CHECK(run.digest() == before);
  CHECK(run.coordinator->step(window).committed());
  CHECK(agreed(run.weights_hash()));  // the owners' values replace all replicas
}

TEST_CASE("a stop request of one rank is known to all at the same boundary")
{
  Run run({});
  Window window = run.coordinator->open_window();
  if (run.topology.rank() == world_size() - 1) window.request_stop();
  const Outcome outcome = run.coordinator->step(window);
  CHECK(outcome.stop_requested);
  CHECK_FALSE(run.attempt().stop_requested);
}

TEST_CASE("a committed boundary is refused inside a window")
{
  Run run({});
  CHECK(run.coordinator->boundary().control().step == 0);
  Window window = run.coordinator->open_window();
  CHECK_THROWS_AS(run.coordinator->boundary(), InvalidArgument);
  CHECK_THROWS_AS(run.coordinator->open_window(), InvalidArgument);
  run.coordinator->step(window);
  CHECK(run.coordinator->boundary().control().step == 1);
}

TEST_CASE("ranks whose configuration differs halt together at the first vote")
{
  if (world_size() == 1) return;
  Topology topology(MPI_COMM_WORLD);
  auto device = make_host_device();
  AdamOptions options;
  if (topology.rank() == world_size() - 1) options.learning_rate = 2e-3;
  ShardedAdam adam(topology, *device, parameter_set(), options);
  Coordinator coordinator(topology, {&adam}, {});
  Window window = coordinator.open_window();
  std::string message;
  try {
    coordinator.step(window);
  } catch (const Halt& halt) {
    message = halt.what();
    CHECK(halt.outcome.verdict.field == AgreedField::configuration);
    CHECK(halt.outcome.verdict.rank == static_cast<std::uint32_t>(world_size() - 1));
  }
  CHECK(message.find("configuration") != std::string::npos);
  CHECK(agreed(message));
  coordinator.close();
  adam.close_buffers();
  topology.close();
}

TEST_CASE("one rank's bad options are refused on all ranks alike")
{
  Topology topology(MPI_COMM_WORLD);
  auto device = make_host_device();
  const auto refused = [&](AdamOptions options, ParameterSet set) {
    std::string message;
    try {
      ShardedAdam adam(topology, *device, std::move(set), options);
    } catch (const Error& error) {
      message = error.what();
    }
    CHECK(agreed(message));
    return message;
  };
  AdamOptions options;
  if (topology.rank() == world_size() - 1) options.learning_rate = -1;
  CHECK(refused(options, parameter_set()).find("learning rate") != std::string::npos);
  options = {};
  if (topology.rank() == 0) options.rank_weights = {-1.0};
  CHECK(refused(options, parameter_set()).find("; ") != std::string::npos);
  // One rank that owns more than the node has: nobody starts, and nothing is killed later.
  ParameterSet enormous;
  enormous.add({"sea", {std::size_t{1} << 34}, Precision::fp16, Placement::replicated, 0, {}});
  const std::string lack = refused({}, enormous);
  CHECK(lack.find("cannot be allocated") != std::string::npos);
  topology.close();
}

// --- a foreign optimizer as a participant ------------------------------------------------------

namespace {

/// Plain SGD of a code of its own, replicated over all ranks: it takes only the decision from
/// tutti.
class ForeignSgd final : public Participant {
 public:
  explicit ForeignSgd(MPI_Comm communicator) : communicator_(communicator) {}
  std::vector<double> values = std::vector<double>(100, 1.0),
                      gradient = std::vector<double>(100, 0.0);

  const std::string& name() const override { return name_; }
  std::size_t parameters() const override { return 1; }
  std::string parameter_name(std::size_t) const override { return "field"; }
  Policy::Betas betas(std::size_t) const override { return {0, 0}; }
  std::uint64_t configuration_hash() const override { return hash_of("sgd 0.1"); }
  std::uint64_t plan_hash() const override { return 0; }
  void open() override {}
  void accumulate(std::uint32_t) override { has_ = true; }
  void close() override {}
  void exchange() override
  {
    sum_ = gradient;
    MPI_Allreduce(MPI_IN_PLACE, sum_.data(), 100, MPI_DOUBLE, MPI_SUM, communicator_);
  }
  void inspect(Ballot& ballot, std::span<std::uint8_t> has_gradient) override
  {
    has_gradient[0] = has_;
    int rank = 0;
    MPI_Comm_rank(communicator_, &rank);
    for (std::size_t i = 0; i < sum_.size(); ++i) {
      if (std::isfinite(sum_[i])) {
        if (rank == 0) ballot.sum_of_squares.add(sum_[i] * sum_[i]);
        continue;
      }
      ++ballot.nonfinite;
      Offender offender;
      offender.stage = static_cast<std::uint32_t>(Stage::exchange);
      offender.parameter = 0;
      offender.element = i;
      offender.rank = static_cast<std::uint32_t>(rank);
      ballot.offender = std::min(ballot.offender, offender);
    }
  }
  void stage(const Update& update) override
  {
    staged_ = values;
    for (std::size_t i = 0; i < values.size(); ++i)
      staged_[i] -= 0.1 * update.grad_factor * sum_[i];
  }
  void gather() override {}
  void confirm(Confirm& confirm) override
  {
    for (double value : staged_) confirm.nonfinite += !std::isfinite(value);
  }
  void publish() noexcept override { values.swap(staged_); }
  void discard() noexcept override {}
  StateView state() override { return {}; }
  void restored() override {}

 private:
  MPI_Comm communicator_;
  std::string name_ = "foreign";
  std::vector<double> sum_, staged_;
  bool has_ = false;
};

}  // namespace

TEST_CASE("a foreign optimizer beside ShardedAdam shares one outcome with it")
{
  Topology topology(MPI_COMM_WORLD);
  auto device = make_host_device();
  ShardedAdam adam(topology, *device, parameter_set(), {});
  adam.initialize([&](std::size_t p) {
    std::size_t elements = 1;
    for (std::size_t extent : adam.parameter_set()[p].shape) elements *= extent;
    return std::vector<float>(elements, 0.5f);
  });
  ForeignSgd sgd(topology.world());
  CoordinatorOptions options;
  options.window_samples = static_cast<std::uint64_t>(world_size());
  Coordinator coordinator(topology, {&adam, &sgd}, options);
  Participant* const adam_only[] = {&adam};

  for (int attempt = 0; attempt < 3; ++attempt) {
    const bool bad = attempt == 1;
    Window window = coordinator.open_window();
    for (std::size_t p = 0; p < adam.parameters(); ++p)
      for (std::size_t e = 0; e < adam.piece(p).elements; ++e)
        store_element(adam.gradient(p), adam.parameter_set()[p].precision, e, 0.25f);
    std::fill(sgd.gradient.begin(), sgd.gradient.end(), 1.0 / world_size());
    if (bad && topology.rank() == world_size() - 1) sgd.gradient[17] = std::nan("");
    window.add_micro_batch(1, 1);
    const std::uint64_t before = state_digest(adam_only, topology.world());
    const std::vector<double> values = sgd.values;
    const Outcome outcome = coordinator.step(window);
    CHECK(outcome.committed() == !bad);
    CHECK((state_digest(adam_only, topology.world()) == before) == bad);
    CHECK((sgd.values == values) == bad);
    if (bad) {
      CHECK(outcome.offender.participant == 1);
      CHECK(outcome.offender.element == 17);
    }
    check_same_everywhere(outcome);
  }
  CHECK(std::abs(sgd.values[0] - 0.8) < 1e-12);
  coordinator.close();
  adam.close_buffers();
  topology.close();
}

TEST_CASE("a rank that is far from its memory locates what went wrong as any other")
{
  const int last = world_size() - 1;
  for (const std::uint32_t micro_batches : {1u, 2u})
    for (const std::string& fault :
         {on_rank("nonfinite", last, "attempt=2,param=split1,element=4500,value=inf,micro=0"),
          on_rank("nonfinite", 0, "attempt=2,param=norm,element=17,value=nan,micro=0"),
          on_rank("update", last, "attempt=2")}) {
      std::vector<std::string> messages;
      std::vector<std::uint64_t> digests;
      for (const bool far : {false, true}) {
        RunOptions options;
        options.micro_batches = micro_batches;
        options.faults = {fault};
        options.far = far;
        Run run(options);
        for (int attempt = 0; attempt < 3; ++attempt) {
          const Outcome outcome = run.attempt();
          check_same_everywhere(outcome);
          if (attempt == 1) {
            CHECK(outcome.verdict.kind == VerdictKind::skip);
            messages.push_back(outcome.message);
          }
        }
        digests.push_back(run.digest());
      }
      CHECK(messages[0] == messages[1]);
      CHECK(digests[0] == digests[1]);
    }
}

TEST_CASE("absent gradients in device memory count as zero, not as what was there before")
{
  for (const bool nccl : {nccl_double_runs(), false})
    for (const std::uint32_t micro_batches : {1u, 2u}) {
      std::optional<std::uint64_t> expected;
      for (const bool on_device : {false, true}) {
        RunOptions options;
        options.micro_batches = micro_batches;
        options.shared_memory = false;
        options.far = on_device;
        options.nccl = on_device && nccl;
        options.gpu_aware_mpi = on_device && !nccl && mpi_reaches_far_memory();
        Run run(options);
        CHECK(run.attempt().committed());
        Window window = run.coordinator->open_window();
        for (std::uint32_t micro = 0; micro < micro_batches; ++micro) {
          if (world_rank() == 0)
            for (std::size_t p = 0; p < run.optimizers[0]->parameters(); ++p)
              run.optimizers[0]->set_absent(p);
          else
            run.fill(*run.optimizers[0], window, micro);
          window.add_micro_batch(1, 1);
        }
        CHECK(run.coordinator->step(window).committed());
        const std::uint64_t digest = run.digest();
        if (!expected) expected = digest;
        CHECK(digest == *expected);
      }
    }
}

TEST_CASE("faults find their places in device memory")
{
  RunOptions options;
  options.far = true;
  options.nccl = nccl_double_runs();
  options.faults = {"nonfinite:attempt=1,rank=0,value=-inf", "bitflip:attempt=2,rank=0,element=9"};
  Run run(options);
  const Outcome outcome = run.attempt();
  CHECK(outcome.verdict.reason == Reason::gradient);
  CHECK(outcome.offender.rank == 0);
  const std::uint64_t before = run.weights_hash();
  Window window = run.coordinator->open_window();
  if (world_rank() == 0) CHECK(run.weights_hash() != before);
  run.fill(*run.optimizers[0], window, 0);
  window.add_micro_batch(1, 1);
  CHECK(run.coordinator->step(window).committed());
}

TEST_CASE("NCCL where it cannot be is refused by all ranks")
{
  RunOptions options;
  options.nccl = true;
  options.far = world_rank() != 0;  // one rank computes on the host
  std::string message;
  try {
    const Run run(options);
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  CHECK(message.find("rank 0 cannot exchange by NCCL (this rank computes on the host)") == 0);
  CHECK(agreed(message));
}

TEST_CASE(
    "a failing call of MPI or NCCL inside a step: it throws, and nothing is accepted after it")
{
  const auto refused = [](Run& run) {
    int refusals = 0;
    const auto expect = [&](auto&& call) {
      try {
        call();
      } catch (const InvalidArgument& error) {
        refusals +=
            std::string(error.what()).find("an MPI call failed before") != std::string::npos;
      }
    };
    expect([&] { run.coordinator->open_window(); });
    expect([&] { run.coordinator->boundary(); });
    expect([&] { run.coordinator->resume(ControlState(run.coordinator->control())); });
    return refusals == 3;
  };
  // The ballot, then the confirm.
  for (const std::uint64_t call : {1u, 2u}) {
    Run run({});
    CHECK(run.attempt().committed());
    const std::uint64_t before = run.digest(), weights = run.weights_hash();
    Window window = run.coordinator->open_window();
    run.fill(*run.optimizers[0], window, 0);
    window.add_micro_batch(1, 1);
    failing_reduction = call;
    CHECK_THROWS_AS(run.coordinator->step(window), MpiError);
    failing_reduction = 0;
    CHECK(refused(run));
    CHECK(run.digest() == before);
    CHECK(run.weights_hash() == weights);
  }
  if (world_size() == 1 || !nccl_double_runs()) return;
  for (int rank = 0; rank < world_size(); ++rank) {
    RunOptions options;
    options.far = options.nccl = true;
    Run run(options);
    CHECK(run.attempt().committed());
    Window window = run.coordinator->open_window();
    run.fill(*run.optimizers[0], window, 0);
    window.add_micro_batch(1, 1);
    nccl_double().fails = world_rank() == rank;
    std::string message;
    try {
      run.coordinator->step(window);
    } catch (const MpiError& error) {
      message = error.what();
    }
    CHECK(message.find(world_rank() == rank ? "unhandled system error" : "remote process") !=
          std::string::npos);
    CHECK(refused(run));
  }
}
