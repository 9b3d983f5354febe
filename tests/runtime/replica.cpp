// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies of the weights against what their owners wrote: a flipped bit in any copy is found at the
// next check, with rank, parameter and block, before it reaches an update.
#include <cstring>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/sharded_adam.hpp"

using namespace tutti;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

struct Options {
  int model_parallel = 1;
  bool shared_memory = true;
  int domain_size = 0;
  UpdateMode update = UpdateMode::staged;
  std::uint64_t every = 2;
  std::vector<std::string> faults;
};

struct Job {
  explicit Job(const Options& o)
      : topology(MPI_COMM_WORLD, {o.model_parallel, o.shared_memory, o.domain_size}),
        device(make_host_device())
  {
    ParameterSet set;
    set.add({"split", {20, 3000}, Precision::fp16, Placement::split, 1, {}});
    set.add({"whole", {30000}, Precision::fp32, Placement::replicated, 0, {}});
    set.add({"bias", {7}, Precision::bf16, Placement::replicated, 0, {}});
    AdamOptions options;
    options.update = o.update;
    adam = std::make_unique<ShardedAdam>(topology, *device, set, options);
    adam->initialize([](std::size_t p) {
      std::vector<float> values(p == 0 ? 60000 : p == 1 ? 30000 : 7);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i % 100) * 0.01f;
      return values;
    });
    CoordinatorOptions c;
    c.policy.update = o.update;
    c.policy.digest_every = o.every;
    std::vector<Fault> faults;
    for (const std::string& fault : o.faults) faults.push_back(parse_fault(fault));
    c.faults = FaultPlan(faults);
    coordinator = std::make_unique<Coordinator>(topology, std::vector<Participant*>{adam.get()}, c);
    coordinator->note_checkpoint("step-0.h5", 0);
  }
  ~Job()
  {
    coordinator->close();
    adam->close_buffers();
    topology.close();
  }
  Outcome attempt()
  {
    Window window = coordinator->open_window();
    for (std::size_t p = 0; p < 3; ++p) {
      const std::size_t width = bytes_of(adam->parameter_set()[p].precision);
      std::memset(adam->gradient(p), 0x11, adam->piece(p).elements * width);
    }
    window.add_micro_batch(1, 1);
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

std::vector<Options> layouts()
{
  std::vector<Options> out;
  for (int m = 1; m <= 2; ++m)
    for (UpdateMode update : {UpdateMode::staged, UpdateMode::in_place})
      for (int domain : {0, 2, 1}) {
        if (world_size() % m != 0) continue;
        Options o;
        o.model_parallel = m;
        o.update = update;
        o.domain_size = domain;
        o.shared_memory = domain != 1;
        out.push_back(o);
      }
  return out;
}

/// The lowest rank that reads the same copy as `rank`.
int host_of(const Topology& topology, int rank)
{
  for (int q : topology.domain_of(rank))
    if (q % topology.model_parallel() == rank % topology.model_parallel()) return q;
  return rank;
}

}  // namespace

TEST_CASE("whole copies raise nothing, whatever the layout, and the steps have the same bits")
{
  for (Options o : layouts()) {
    o.every = 1;
    Job job(o);
    o.every = 0;
    Job without(o);
    for (int i = 0; i < 3; ++i) {
      CHECK(job.attempt().committed());
      CHECK(without.attempt().committed());
    }
    Participant* const one[] = {job.adam.get()};
    Participant* const other[] = {without.adam.get()};
    CHECK(state_digest(one, MPI_COMM_WORLD) == state_digest(other, MPI_COMM_WORLD));
  }
}

TEST_CASE("a flipped bit in any copy: the next check names rank, parameter and block")
{
  struct Place {
    const char* parameter;
    std::uint64_t element;
  };
  for (Options o : layouts())
    for (int rank = 0; rank < world_size(); ++rank)
      for (const Place place : {Place{"split", 9000}, Place{"whole", 29999}, Place{"bias", 6}}) {
        INFO(place.parameter << " on rank " << rank << ", model-parallel " << o.model_parallel);
        o.faults = {"bitflip:step=2,bit=3,rank=" + std::to_string(rank) +
                    ",param=" + place.parameter + ",element=" + std::to_string(place.element)};
        Job job(o);
        CHECK(job.attempt().committed());
        CHECK(job.attempt().committed());
        const Outcome outcome = job.attempt();
        REQUIRE(tutti::test::on_all_ranks(outcome.verdict.reason == Reason::replica_mismatch));
        const Incident& i = *outcome.incident;
        CHECK(i.parameter == place.parameter);
        CHECK(i.replica_block == place.element / block_elements);
        CHECK(static_cast<int>(i.rank) == host_of(job.topology, rank));
        CHECK(i.count == 1);
        CHECK(outcome.message.find("step-0.h5 of step 0") != std::string::npos);
        CHECK(job.coordinator->control().step == 2);
        if (rank != static_cast<int>(i.rank) || world_rank() != rank) continue;
        const std::size_t p = job.adam->parameter_set().index_of(place.parameter);
        CHECK(i.element == job.adam->piece(p).global_index(*i.replica_block * block_elements));
      }
}

TEST_CASE("between two checks a flip is replaced by the next update; the first weights count too")
{
  Options o;
  o.every = 2;
  o.faults = {"bitflip:step=1,bit=3,rank=0,param=whole"};
  Job between(o);
  for (int i = 0; i < 4; ++i) CHECK(between.attempt().committed());
  o.faults = {"bitflip:step=0,bit=3,rank=0,param=whole"};
  Job first(o);
  CHECK(first.attempt().verdict.reason == Reason::replica_mismatch);
}

TEST_CASE("after a dropped update the copies are checked against the weights that stayed")
{
  Options o;
  o.every = 1;
  o.faults = {"update:attempt=2,rank=0", "bitflip:attempt=4,bit=1,rank=0,param=whole"};
  Job job(o);
  CHECK(job.attempt().committed());
  CHECK(job.attempt().verdict.reason == Reason::update);
  CHECK(job.attempt().committed());
  CHECK(job.attempt().verdict.reason == Reason::replica_mismatch);
}
