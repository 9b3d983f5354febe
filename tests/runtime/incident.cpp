// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Incidents: for each stage, rank and path the record names exactly what was put in, on all ranks
// alike; and its text and files, also where they cannot be written.
#include "tutti/incident.hpp"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/digest.hpp"
#include "tutti/half.hpp"
#include "tutti/sharded_adam.hpp"

using namespace tutti;
using tutti::test::agreed;
using tutti::test::world_rank;
using tutti::test::world_size;
namespace fs = std::filesystem;

namespace {

/// A folder that all ranks share, gone when the test ends.
struct Scratch {
  Scratch()
  {
    long long id = ::getpid();
    MPI_Bcast(&id, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD);
    static int count = 0;
    path = fs::temp_directory_path() /
           ("tutti-incident-" + std::to_string(id) + "-" + std::to_string(count++));
  }
  ~Scratch()
  {
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank() == 0) fs::remove_all(path);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  fs::path path;
};

enum Parameter : std::size_t { single, half };

/// Data-parallel replicas of an fp32 and an fp16 parameter; gradients are zero but for what a test
/// puts in.
struct Job {
  explicit Job(AdamOptions adam_options = {}, CoordinatorOptions options = {},
               bool shared_memory = true)
      : topology(MPI_COMM_WORLD, {1, shared_memory, 0}), device(make_host_device())
  {
    ParameterSet set;
    set.add({.name = "single", .shape = {3, 3000}});
    set.add({.name = "half", .shape = {4500}, .precision = Precision::fp16});
    adam_options.micro_batches = options.micro_batches;
    adam = std::make_unique<ShardedAdam>(topology, *device, set, adam_options);
    adam->initialize([&](std::size_t p) {
      return std::vector<float>(p == single ? 9000 : 4500, p == single ? 0.5f : 65500.0f);
    });
    options.window_samples = samples();
    coordinator =
        std::make_unique<Coordinator>(topology, std::vector<Participant*>{adam.get()}, options);
  }
  ~Job()
  {
    coordinator->close();
    adam->close_buffers();
    topology.close();
  }
  static std::uint64_t samples() { return 24 * static_cast<std::uint64_t>(world_size()); }

  struct Value {
    int rank;
    std::uint32_t micro;
    Parameter parameter;
    std::size_t element;
    float value;
  };
  /// One attempt with these gradients; losses are `micro` + 1 a sample.
  Outcome attempt(const std::vector<Value>& values)
  {
    Window window = coordinator->open_window();
    for (std::uint32_t micro = 0; micro < window.micro_batches(); ++micro) {
      for (std::size_t p = 0; p < 2; ++p)
        std::memset(adam->gradient(p), 0, p == single ? 9000 * 4 : 4500 * 2);
      for (const Value& v : values)
        if (v.rank == topology.rank() && v.micro == micro)
          store_element(adam->gradient(v.parameter),
                        v.parameter == single ? Precision::fp32 : Precision::fp16, v.element,
                        v.value);
      const std::uint64_t count = window.positions(micro).size();
      window.add_micro_batch((micro + 1.0) * static_cast<double>(count), count);
    }
    try {
      return coordinator->step(window);
    } catch (const Halt& halt) {
      return halt.outcome;
    }
  }

  Topology topology;
  std::unique_ptr<Device> device;
  std::unique_ptr<ShardedAdam> adam;
  std::unique_ptr<Coordinator> coordinator;
};

CoordinatorOptions with_micro_batches(std::uint32_t micro_batches)
{
  CoordinatorOptions options;
  options.micro_batches = micro_batches;
  return options;
}

/// The incident of an outcome that is not Commit; equal on all ranks.
Incident incident_of(const Outcome& outcome)
{
  REQUIRE(tutti::test::on_all_ranks(outcome.incident != nullptr));
  CHECK(agreed(to_json(*outcome.incident)));
  CHECK(outcome.incident->message == outcome.message);
  return *outcome.incident;
}

constexpr float huge = 3e38f;
const float nan_value = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("an incident comes back from its text with the same bits")
{
  Incident incident;
  incident.step = 1ull << 63;
  incident.message = "a \"message\"";
  incident.window = {3, 9};
  incident.loss_scale = 0.1;
  incident.largest_finite = 5e-324;
  incident.stage = "update";
  incident.rank = 7;
  incident.value = "-inf";
  incident.value_bits = 0xff800000u;
  incident.micro = 3;
  incident.magnitude = std::numeric_limits<double>::infinity();
  incident.node = "node17";
  incident.data_parallel = 4;
  incident.model_parallel = 2;
  incident.micro_batches = 3;
  incident.configuration = R"({"lr":0.001,"precision":"fp16"})";
  incident.micro_losses = {0.1, -0.0, std::nan(""), 1e308};
  incident.precision = {"fp16", "fp16", "fp32", "fp32", "fp32"};
  incident.sample_ids = {31337, 0};
  incident.failure_text = "broken \xff text";
  incident.replica_block = 5;
  incident.array_files = {"a.npy"};
  Incident back = incident_from_json(to_json(incident));
  CHECK(back.failure_text != incident.failure_text);  // what is no UTF-8 is replaced
  back.failure_text = incident.failure_text;
  CHECK(back == incident);
  CHECK(std::signbit(back.micro_losses[1]));
  CHECK_THROWS_AS(incident_from_json("{}"), IoError);
  CHECK_THROWS_AS(incident_from_json("{\"tutti_incident\": 2}"), IoError);
  CHECK_THROWS_AS(read_incident("/nowhere/incident.json"), IoError);
}

TEST_CASE("files: the arrays as NumPy's, no name is used twice, and no error is thrown")
{
  if (world_rank() != 0) return;
  const fs::path folder =
      fs::temp_directory_path() / ("tutti-incident-files-" + std::to_string(::getpid()));
  Incident incident;
  incident.attempt = 12;
  NamedArray array{"inputs", "|u1", {2, 3}, {}};
  for (int i = 0; i < 6; ++i) array.bytes.push_back(static_cast<std::byte>(i));
  write_incident(incident, {array}, folder / "deep");
  CHECK(incident.write_error.empty());
  CHECK(incident.file == (folder / "deep" / "incident-000000000012.json").string());
  CHECK(read_incident(incident.file) == incident);
  std::ifstream in(folder / "deep" / incident.array_files.at(0), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  CHECK(bytes.find("'shape': (2,3,)") != std::string::npos);
  REQUIRE(bytes.size() % 64 == 6);  // the header ends on a multiple of 64
  CHECK(bytes.substr(bytes.size() - 6) == std::string("\0\1\2\3\4\5", 6));

  Incident again;
  again.attempt = 12;
  write_incident(again, {}, folder / "deep");
  CHECK(again.file == (folder / "deep" / "incident-000000000012-2.json").string());
  CHECK(list_incidents(folder / "deep").size() == 2);
  for (const auto& entry : fs::directory_iterator(folder / "deep"))
    CHECK(entry.path().filename().string()[0] != '.');

  std::ofstream(folder / "file") << "x";
  Incident nowhere;
  write_incident(nowhere, {array}, folder / "file");  // not a folder
  CHECK(nowhere.file.empty());
  CHECK_FALSE(nowhere.write_error.empty());
  CHECK_THROWS_AS(list_incidents(folder / "none"), IoError);
  fs::remove_all(folder);
}

TEST_CASE("a bad gradient: rank, parameter, element, micro-batch and numbers of that rank")
{
  for (std::uint32_t micro_batches : {1u, 3u})
    for (bool shared : {true, false})
      for (int rank = 0; rank < world_size(); ++rank) {
        const std::uint32_t micro = micro_batches - 1;
        Job job({}, with_micro_batches(micro_batches), shared);
        job.coordinator->note_checkpoint("step-7.h5", 7);
        CHECK(job.attempt({}).committed());
        CHECK(job.attempt({}).incident == nullptr);
        const Incident i = incident_of(job.attempt({{rank, micro, single, 4200, nan_value},
                                                    {rank, micro, single, 8999, nan_value},
                                                    {rank, micro, single, 17, -6.5f}}));
        CHECK(i.step == 2);
        CHECK(i.attempt == 3);
        CHECK(i.verdict == "skip");
        CHECK(i.reason == "gradient");
        CHECK(i.stage == "micro_batch");
        CHECK(i.before_synchronization);
        CHECK(i.contributor_known);
        CHECK(i.rank == static_cast<std::uint32_t>(rank));
        CHECK(i.optimizer == "adam");
        CHECK(i.parameter == "single");
        CHECK(i.element == 4200);
        CHECK(i.value == "nan");
        CHECK(i.count == 2);
        CHECK(i.array == "gradient");
        CHECK(i.micro == micro);
        CHECK_FALSE(i.magnitude.has_value());
        CHECK(i.largest_finite == 6.5);
        CHECK(i.precision == PrecisionNames{"fp32", "fp32", "fp32", "fp32", "fp32"});
        CHECK(i.micro_losses.size() == micro_batches);
        CHECK(i.micro_losses.back() == micro_batches);
        CHECK(i.positions.size() == 24 / micro_batches);
        CHECK(i.positions.begin == 2 * Job::samples() + static_cast<std::uint64_t>(rank) * 24 +
                                       micro * (24 / micro_batches));
        CHECK(i.checkpoint == "step-7.h5");
        CHECK(i.checkpoint_step == 7);
        CHECK(i.repeats == 1);
      }
}

TEST_CASE("finite gradients whose sum over micro-batches overflows: the micro-batch that did it")
{
  for (bool shared : {true, false})
    for (int rank = 0; rank < world_size(); ++rank) {
      Job job({}, with_micro_batches(4), shared);
      const Incident i = incident_of(job.attempt({{rank, 0, single, 5, huge},
                                                  {rank, 1, single, 4, huge},
                                                  {rank, 2, single, 5, huge},
                                                  {rank, 3, single, 5, -huge}}));
      CHECK(i.stage == "accumulation");
      CHECK(i.before_synchronization);
      CHECK(i.rank == static_cast<std::uint32_t>(rank));
      CHECK(i.element == 5);
      CHECK(i.micro == 2u);
      CHECK(i.value == "inf");
      CHECK(i.count == 1);
      CHECK(i.array == "sum of micro-batches");
    }
}

TEST_CASE("finite contributions whose sum over ranks overflows: the rank that did it")
{
  for (bool shared : {true, false})
    for (int rank = 1; rank < world_size(); ++rank) {
      Job job({}, {}, shared);
      std::vector<Job::Value> values = {{0, 0, single, 4100, huge}, {rank, 0, single, 4100, huge}};
      if (rank + 1 < world_size()) values.push_back({rank + 1, 0, single, 4100, huge});
      const Incident i = incident_of(job.attempt(values));
      CHECK(i.reason == "gradient");
      CHECK(i.stage == "exchange");
      CHECK_FALSE(i.before_synchronization);
      CHECK(i.contributor_known);
      CHECK(i.rank == static_cast<std::uint32_t>(rank));
      CHECK(i.element == 4100);
      CHECK(i.magnitude == static_cast<double>(huge));
    }
  if (world_size() == 1) return;
  AdamOptions by_mpi;
  by_mpi.reduce_scatter = true;
  Job job(by_mpi);
  const Incident& i = incident_of(job.attempt({{0, 0, single, 7, huge}, {1, 0, single, 7, huge}}));
  CHECK(i.stage == "exchange");
  CHECK_FALSE(i.contributor_known);
  CHECK(i.element == 7);
  CHECK(job.adam->plan().owner(0, 0).rank == static_cast<int>(i.rank));
}

TEST_CASE("a bad gradient of reduce_scatter is still named on the rank it came from")
{
  AdamOptions by_mpi;
  by_mpi.reduce_scatter = true;
  for (int rank = 0; rank < world_size(); ++rank) {
    Job job(by_mpi);
    const Incident i = incident_of(job.attempt({{rank, 0, half, 4444, nan_value}}));
    CHECK(i.stage == "micro_batch");
    CHECK(i.rank == static_cast<std::uint32_t>(rank));
    CHECK(i.parameter == "half");
    CHECK(i.element == 4444);
    CHECK(i.precision.gradients == "fp16");
    CHECK(i.precision.wire == "fp32");
  }
}

TEST_CASE("a bad loss: the micro-batch whose loss it was")
{
  for (int rank = 0; rank < world_size(); ++rank) {
    CoordinatorOptions options = with_micro_batches(3);
    options.faults =
        FaultPlan({parse_fault("loss:attempt=1,micro=1,value=inf,rank=" + std::to_string(rank))});
    Job job({}, options);
    const Incident i = incident_of(job.attempt({}));
    CHECK(i.reason == "loss");
    CHECK(i.stage == "loss");
    CHECK(i.rank == static_cast<std::uint32_t>(rank));
    CHECK(i.micro == 1u);
    CHECK(i.value == "inf");
    CHECK(i.parameter.empty());
    CHECK(i.micro_losses.at(0) == 1);
    CHECK(std::isinf(i.micro_losses.at(1)));
    CHECK(i.micro_losses.at(2) == 3);
  }
}

TEST_CASE("a gradient that only unscaling makes infinite")
{
  CoordinatorOptions options;
  options.policy.scaling.enabled = true;
  options.policy.scaling.initial = 0x1p-20;
  Job job({}, options);
  const Incident i = incident_of(job.attempt({{0, 0, single, 8000, -1e38f}}));
  CHECK(i.reason == "update");
  CHECK(i.stage == "unscale");
  CHECK(i.element == 8000);
  CHECK(i.value == "-inf");
  CHECK(i.array == "unscaled gradient");
  CHECK(i.magnitude == static_cast<double>(1e38f) * 0x1p20);
  CHECK(static_cast<int>(i.rank) == job.adam->plan().owner(0, 8000 / block_elements).rank);
  CHECK(i.loss_scale == 0x1p-20);
}

TEST_CASE("a finite gradient whose square is not: nothing moves, and exp_avg_sq is named")
{
  Job job;
  Participant* const participants[] = {job.adam.get()};
  const std::uint64_t before = state_digest(participants, MPI_COMM_WORLD);
  const Incident i = incident_of(job.attempt({{world_size() - 1, 0, single, 4097, 3e19f}}));
  CHECK(i.reason == "update");
  CHECK(i.stage == "update");
  CHECK(i.element == 4097);
  CHECK(i.array == "exp_avg_sq");
  CHECK(i.value == "inf");
  CHECK(i.magnitude == static_cast<double>(3e19f));
  CHECK(state_digest(participants, MPI_COMM_WORLD) == before);
}

TEST_CASE("a master weight that the model's precision cannot hold")
{
  AdamOptions adam;
  adam.learning_rate = 100;  // 65500 + 100 is no fp16
  Job job(adam);
  const Incident i = incident_of(job.attempt({{0, 0, half, 4321, -1.0f}}));
  CHECK(i.stage == "update");
  CHECK(i.parameter == "half");
  CHECK(i.element == 4321);
  CHECK(i.array == "weights");
  CHECK(i.value == "inf");
  CHECK(i.count == 1);
}

TEST_CASE("optimizer state that is nonfinite halts and is named")
{
  for (const std::size_t array : {0, 1, 2}) {
    Job job;
    const StateView view = job.adam->state();
    const ShardPlan::Owner owner = job.adam->plan().owner(0, 1);
    const auto& shard = job.adam->plan().shard(owner.rank);
    const auto at =
        static_cast<std::size_t>(std::find(shard.begin(), shard.end(), 1u) - shard.begin());
    if (owner.rank == world_rank()) view.arrays[array].data[at * block_elements + 77] = nan_value;
    const Outcome outcome = job.attempt({});
    CHECK(outcome.verdict.reason == Reason::nonfinite_state);
    const Incident i = incident_of(outcome);
    CHECK(i.verdict == "halt");
    CHECK(i.stage == "state");
    CHECK(i.array == view.arrays[array].name);
    CHECK(i.element == block_elements + 77);
    CHECK(static_cast<int>(i.rank) == owner.rank);
    CHECK(i.magnitude == 0.0);
  }
}

TEST_CASE("a clipping factor that breaks what unscaling left whole is stage clip")
{
  Job job;
  job.adam->open();
  std::fill_n(static_cast<float*>(job.adam->gradient(single)), 9000, 1.0f);
  job.adam->accumulate(0);
  job.adam->close();
  job.adam->exchange();
  Ballot ballot;
  std::vector<std::uint8_t> has(2);
  job.adam->inspect(ballot, has);
  const std::vector<ParameterClock> clocks(2);
  Update update;
  update.grad_factor = update.clip = 1e60;  // no fp32
  update.clocks = clocks;
  update.has_gradient = has;
  job.adam->stage(update);
  job.adam->gather();
  Confirm confirm;
  job.adam->confirm(confirm);
  MPI_Barrier(MPI_COMM_WORLD);
  if (job.adam->plan().shard(world_rank()).empty() || job.adam->plan().shard(world_rank())[0] >= 3)
    return;  // this rank owns nothing of it
  CHECK(confirm.offender.stage == static_cast<std::uint32_t>(Stage::clip));
}

TEST_CASE("exceptions and mismatches are incidents too")
{
  const int last = world_size() - 1;
  CoordinatorOptions options;
  options.faults =
      FaultPlan({parse_fault("throw:attempt=1,phase=gather,rank=" + std::to_string(last))});
  {
    Job job({}, options);
    const Incident i = incident_of(job.attempt({}));
    CHECK(i.reason == "update_failed");
    CHECK(i.failure_phase == "gather");
    CHECK(i.failure_text == "planned exception in phase gather");
    CHECK(i.rank == static_cast<std::uint32_t>(last));
    CHECK(i.stage.empty());
  }
  if (last == 0) return;
  options.policy.scaling.enabled = true;
  options.policy.scaling.initial = 4;
  options.faults =
      FaultPlan({parse_fault("scale:attempt=1,factor=2,rank=" + std::to_string(last))});
  Job job({}, options);
  const Incident i = incident_of(job.attempt({}));
  CHECK(i.reason == "control_mismatch");
  CHECK(i.mismatch == "loss_scale");
  CHECK(i.rank == static_cast<std::uint32_t>(last));
  CHECK(std::bit_cast<double>(i.mismatch_least) == 4);
  CHECK(std::bit_cast<double>(i.mismatch_greatest) == 8);
}

TEST_CASE("the rank that an incident names writes it, with its samples; a limit is kept")
{
  const Scratch scratch;
  const int last = world_size() - 1;
  int asked = 0;
  CoordinatorOptions options = with_micro_batches(2);
  options.incident_dir = scratch.path.string();
  options.incident_limit = 1;
  options.evidence = [&](Interval positions) {
    ++asked;
    Evidence evidence;
    NamedArray labels{"labels", "<u8", {positions.size()}, {}};
    for (std::uint64_t p = positions.begin; p < positions.end; ++p)
      evidence.sample_ids.push_back(p + 1000);
    labels.bytes.resize(8 * positions.size());
    std::memcpy(labels.bytes.data(), evidence.sample_ids.data(), labels.bytes.size());
    evidence.arrays.push_back(labels);
    return evidence;
  };
  Job job({}, options);
  const Incident i = incident_of(job.attempt({{last, 1, half, 0, nan_value}}));
  CHECK(asked == (world_rank() == last ? 1 : 0));
  CHECK(i.sample_ids.size() == 12);
  CHECK(i.sample_ids.front() == i.positions.begin + 1000);
  CHECK(i.write_error.empty());
  CHECK(i.array_files == std::vector<std::string>{"incident-000000000001.labels.npy"});
  CHECK(read_incident(i.file) == i);
  const Incident second = incident_of(job.attempt({{0, 0, half, 0, nan_value}}));
  CHECK(second.file.empty());
  CHECK(list_incidents(scratch.path).size() == 1);
}

TEST_CASE("what cannot be written or asked stops nothing, and all ranks know why")
{
  CoordinatorOptions options;
  options.incident_dir = "/proc/no/such/folder";
  {
    Job job({}, options);
    const Outcome outcome = job.attempt({{0, 0, half, 0, nan_value}});
    CHECK_FALSE(incident_of(outcome).write_error.empty());
    CHECK(outcome.verdict.kind == VerdictKind::skip);
    CHECK(job.attempt({}).committed());
  }
  options.incident_dir.clear();
  options.evidence = [](Interval) -> Evidence { throw std::runtime_error("the data set is gone"); };
  Job job({}, options);
  CHECK(incident_of(job.attempt({{0, 0, half, 0, nan_value}})).write_error ==
        "the data set is gone");
  CHECK(job.attempt({}).committed());
}

TEST_CASE("samples that block a run again and again are named")
{
  Job job;
  for (int k = 0; k < 3; ++k) {
    const Outcome outcome = job.attempt({{0, 0, single, 0, nan_value}});
    CHECK(incident_of(outcome).repeats == static_cast<std::uint64_t>(k) + 1);
    if (k < 2) continue;
    CHECK(outcome.verdict.reason == Reason::repeat_limit);
    CHECK(outcome.message.find("samples at positions 0 to " + std::to_string(Job::samples() - 1) +
                               " broke it 3 times") != std::string::npos);
  }
}
