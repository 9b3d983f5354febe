// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every way of data between ranks against one serial oracle: degrees, memory domains, wire
// precisions, uneven weights and message sizes must all give the bits that the definition gives.
// The kernels that read the tables have tests of their own.
#include "tutti/exchange.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/digest.hpp"
#include "tutti/error.hpp"

using namespace tutti;
using tutti::test::on_all_ranks;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

/// Windows whose errors come back, when their epoch begins.
int windows_returning_errors = 0;

using Method = ExchangeOptions::Method;

// Pieces that end inside a block, an axis shorter than the degree, all precisions and placements.
ParameterSet model(bool partial = true)
{
  const ReplicaGradient kind = partial ? ReplicaGradient::partial : ReplicaGradient::identical;
  ParameterSet parameters;
  parameters.add({"embed", {37, 700}, Precision::fp16, Placement::split, 0});
  parameters.add({"norm", {9000}, Precision::fp32, Placement::replicated, 0, kind});
  parameters.add({"bias", {20000}, Precision::fp16});
  parameters.add({"scalar", {}, Precision::bf16, Placement::replicated, 0, kind});
  parameters.add({"out", {16, 2100}, Precision::bf16, Placement::split, 1});
  parameters.add({"row", {1, 5000}, Precision::fp32, Placement::split, 0});
  return parameters;
}

// Fewer blocks than ranks.
ParameterSet one_block()
{
  ParameterSet parameters;
  parameters.add({"w", {7}, Precision::fp16});
  return parameters;
}

enum class Weights { equal, uneven, with_zeros };

std::vector<double> rank_weights(Weights kind, int size, int degree)
{
  std::vector<double> weights;
  for (int r = 0; r < size && kind != Weights::equal; ++r) {
    const int d = r / degree;
    weights.push_back(kind == Weights::uneven ? 1.0 + 3 * (r % 3)
                      : d % 2 == 1 || d == 2  ? 0.0
                                              : 1.5);
  }
  return weights;
}

float decode(std::uint32_t bits, Precision precision)
{
  if (precision == Precision::fp32) return std::bit_cast<float>(bits);
  if (precision == Precision::bf16) return std::bit_cast<float>(bits << 16);
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const float fraction = static_cast<float>(bits & 1023);
  const float magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 & 1 ? -magnitude : magnitude;
}

// A rank's finite contribution to element i of a block: any bits of which the order of adding
// shows.
std::uint32_t contribution_bits(int rank, std::size_t parameter, std::size_t block, std::size_t i,
                                Precision precision)
{
  const std::uint64_t random =
      mix64(mix64(static_cast<std::uint64_t>(rank), parameter), block * block_elements + i);
  const std::uint32_t bits = static_cast<std::uint32_t>(random);
  if (precision == Precision::fp16)
    return (bits & 0xffff) & ~(1u << 14);  // all below 2, and subnormals
  // Exponents from -16 to 15, any fraction.
  const std::uint32_t exponent = 111 + (static_cast<std::uint32_t>(random >> 40) & 31);
  if (precision == Precision::bf16) return (bits & 0x807f) | exponent << 7;
  return (bits & 0x807fffff) | exponent << 23;
}

// Sums of small whole numbers are exact in any order: for the method that promises no order.
std::uint32_t whole_bits(int rank, std::size_t parameter, std::size_t block, std::size_t i)
{
  const std::uint64_t random =
      mix64(mix64(static_cast<std::uint64_t>(rank), parameter), block * block_elements + i);
  return std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(random % 2001) - 1000));
}

std::uint32_t read_bits(const void* values, std::size_t i, Precision precision)
{
  std::uint32_t wide = 0;
  std::memcpy(&wide, static_cast<const std::byte*>(values) + i * bytes_of(precision),
              bytes_of(precision));
  return wide;
}

// What the owner writes into a block of new weights, eight bytes at a time.
std::uint64_t weight_word(std::uint64_t step, std::size_t parameter, int slot, std::size_t block,
                          std::size_t i)
{
  return mix64(mix64(mix64(step, parameter), static_cast<std::uint64_t>(slot) << 32 | block), i);
}

struct Setup {
  int degree = 1;
  bool shared = true;
  int domain_size = 0;
  Weights weights = Weights::equal;
  ExchangeOptions options = {};
};

// A job: topology, plan and exchange over all ranks, and the oracle for them.
struct Job {
  ParameterSet parameters;
  Topology topology;
  ShardPlan plan;
  Exchange exchange;
  const int rank, slot, degree;
  const SlotLayout& layout;
  const bool whole;

  Job(ParameterSet set, const Setup& setup)
      : parameters(std::move(set)),
        topology(MPI_COMM_WORLD, {.model_parallel = setup.degree,
                                  .shared_memory = setup.shared,
                                  .domain_size = setup.domain_size}),
        plan(parameters, topology.data_parallel(), setup.degree,
             rank_weights(setup.weights, topology.size(), setup.degree)),
        exchange(topology, plan, setup.options),
        rank(topology.rank()),
        slot(topology.model_rank()),
        degree(setup.degree),
        layout(plan.layout(slot)),
        whole(setup.options.method == Method::reduce_scatter)
  {
  }

  void close()
  {
    exchange.close();
    topology.close();
  }

  std::size_t block_of(std::size_t block) const
  {
    return block - layout.piece(layout.parameter_of(block)).first_block;
  }
  Precision wire(std::size_t block) const
  {
    return exchange.fp32_contributions() ? Precision::fp32 : layout.precision_of(block);
  }
  std::uint32_t bits(int from, std::size_t block, std::size_t i) const
  {
    const std::size_t parameter = layout.parameter_of(block);
    return whole ? whole_bits(from, parameter, block_of(block), i)
                 : contribution_bits(from, parameter, block_of(block), i, wire(block));
  }

  void contribute()
  {
    for (std::size_t block = 0; block < layout.blocks(); ++block) {
      std::byte* const at = exchange.contribution() + exchange.contribution_offset(block);
      for (std::size_t i = 0; i < block_elements; ++i) {
        const std::uint32_t value = bits(rank, block, i);
        std::memcpy(at + i * bytes_of(wire(block)), &value, bytes_of(wire(block)));
      }
    }
  }

  // Ranks whose contributions make the sum of a block of mine, from the definition.
  std::vector<int> contributors(std::size_t block) const
  {
    const ParameterSpec& spec = parameters[layout.parameter_of(block)];
    const bool all =
        spec.placement == Placement::replicated && spec.gradient == ReplicaGradient::partial;
    std::vector<int> ranks;
    for (int r = 0; r < topology.size(); ++r) {
      if (all || r % degree == slot) ranks.push_back(r);
    }
    return ranks;
  }

  // Elements of my shard's sums that differ from the oracle's, and shapes of the table that do.
  std::size_t wrong_sums() const
  {
    std::size_t wrong = 0;
    const auto& shard = plan.shard(rank);
    const auto& table = exchange.sum_blocks();
    if (table.size() != shard.size()) return ~std::size_t{0};
    for (std::size_t k = 0; k < shard.size(); ++k) {
      const std::vector<int> ranks = contributors(shard[k]);
      const std::size_t first = table[k].first_source;
      const std::vector<int> named(exchange.source_rank().begin() + first,
                                   exchange.source_rank().begin() + first + table[k].sources);
      wrong += named != (whole ? std::vector<int>{-1} : ranks);
      wrong += table[k].precision != wire(shard[k]);
      for (std::size_t i = 0; i < block_elements; ++i) {
        float expected = decode(bits(ranks[0], shard[k], i), wire(shard[k]));
        for (std::size_t r = 1; r < ranks.size(); ++r) {
          expected += decode(bits(ranks[r], shard[k], i), wire(shard[k]));
        }
        const auto source = [&](std::size_t s) {
          return decode(read_bits(exchange.sources()[first + s], i, table[k].precision),
                        table[k].precision);
        };
        float sum = source(0);
        for (std::size_t s = 1; s < table[k].sources; ++s) sum += source(s);
        wrong += std::bit_cast<std::uint32_t>(sum) != std::bit_cast<std::uint32_t>(expected);
      }
    }
    return wrong;
  }

  int piece_slot(std::size_t block) const
  {
    return parameters[layout.parameter_of(block)].placement == Placement::split ? slot : 0;
  }
  std::size_t words(std::size_t block) const
  {
    return block_elements * bytes_of(layout.precision_of(block)) / 8;
  }

  void write_weights(std::uint64_t step, bool in_place)
  {
    const auto& shard = plan.shard(rank);
    const std::vector<void*> targets = exchange.weight_targets(in_place);
    REQUIRE(targets.size() == shard.size());
    for (std::size_t k = 0; k < shard.size(); ++k) {
      for (std::size_t i = 0; i < words(shard[k]); ++i) {
        const std::uint64_t word = weight_word(step, layout.parameter_of(shard[k]),
                                               piece_slot(shard[k]), block_of(shard[k]), i);
        std::memcpy(static_cast<std::byte*>(targets[k]) + 8 * i, &word, 8);
      }
    }
  }
  // Words of a whole buffer of my slot that are not what the owners wrote in that step.
  std::size_t wrong_weights(const std::byte* buffer, std::uint64_t step) const
  {
    std::size_t wrong = 0;
    for (std::size_t block = 0; block < layout.blocks(); ++block) {
      for (std::size_t i = 0; i < words(block); ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, buffer + layout.byte_offset(block) + 8 * i, 8);
        wrong += word != weight_word(step, layout.parameter_of(block), piece_slot(block),
                                     block_of(block), i);
      }
    }
    return wrong;
  }

  // A step's part of the exchange up to the sums.
  void sum()
  {
    contribute();
    exchange.enter();
    exchange.exchange();
  }
  // And from the new weights to the confirm ballot.
  void update(std::uint64_t step, bool in_place)
  {
    write_weights(step, in_place);
    exchange.gather(in_place);
    confirm();
  }
  void confirm()
  {
    exchange.fence();
    on_all_ranks(true);
    exchange.fence();
  }
};

std::vector<Setup> setups()
{
  std::vector<Setup> all;
  for (int degree : {1, 2, 3}) {
    if (world_size() % degree != 0) continue;
    for (Weights weights : {Weights::equal, Weights::uneven, Weights::with_zeros}) {
      all.push_back({degree, false, 0, weights, {}});
      for (int domain_size : {0, 1, 2, 3}) {
        if (domain_size < world_size()) all.push_back({degree, true, domain_size, weights, {}});
      }
    }
  }
  return all;
}

std::string name_of(const Setup& s)
{
  return "M " + std::to_string(s.degree) + (s.shared ? ", shared, domains of " : ", private, ") +
         std::to_string(s.domain_size) + ", weights " +
         std::to_string(static_cast<int>(s.weights)) + ", fp32 wire " +
         std::to_string(s.options.fp32_wire);
}

// The error that all ranks throw, or how it went instead.
std::string common_error(const Setup& setup, ParameterSet parameters)
{
  std::string text = "accepted";
  try {
    Job(std::move(parameters), setup).close();
  } catch (const Error& error) {
    text = error.what();
  }
  std::vector<char> first(1024, '\0');
  std::copy_n(text.begin(), std::min<std::size_t>(text.size(), 1023), first.begin());
  MPI_Bcast(first.data(), 1024, MPI_CHAR, 0, MPI_COMM_WORLD);
  return on_all_ranks(text == first.data()) ? text : "ranks differ: " + text;
}

}  // namespace

// Through the profiling interface, for the window is the library's own.
extern "C" int MPI_Win_lock_all(int assertion, MPI_Win window)
{
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Win_get_errhandler(window, &handler);
  windows_returning_errors += handler == MPI_ERRORS_RETURN;
  return PMPI_Win_lock_all(assertion, window);
}

TEST_CASE("an owner reads every contribution to its blocks in rank order on every path")
{
  for (Setup setup : setups()) {
    for (bool fp32_wire : {false, true}) {
      setup.options.fp32_wire = fp32_wire;
      INFO(name_of(setup));
      Job job(model(), setup);
      job.sum();
      CHECK(job.wrong_sums() == 0);
      on_all_ranks(true);
      // The same pointers and messages serve the next step, with other data.
      std::memset(job.exchange.contribution(), 0, job.exchange.contribution_offset(0) + 8192);
      on_all_ranks(true);
      job.sum();
      CHECK(job.wrong_sums() == 0);
      on_all_ranks(true);
      job.close();
    }
  }
}

TEST_CASE("all readers see what the owners wrote, and only after publish")
{
  for (const Setup& setup : setups()) {
    INFO(name_of(setup));
    Job job(model(), setup);
    job.update(1, true);  // initial values, in place
    CHECK(job.wrong_weights(job.exchange.weights(), 1) == 0);
    on_all_ranks(true);
    for (std::uint64_t step : {2, 3, 4}) {
      job.exchange.enter();
      job.update(step, false);
      CHECK(job.wrong_weights(job.exchange.weights(), step == 4 ? 2 : step - 1) == 0);
      CHECK(job.wrong_weights(job.exchange.staged_weights(), step) == 0);
      on_all_ranks(true);
      if (step != 3) job.exchange.publish();  // attempt 3 is dropped
      CHECK(job.wrong_weights(job.exchange.weights(), step == 3 ? 2 : step) == 0);
      on_all_ranks(true);
    }
    job.update(5, true);
    CHECK(job.wrong_weights(job.exchange.weights(), 5) == 0);
    on_all_ranks(true);
    job.close();
  }
}

TEST_CASE("a rank scans by itself exactly what no owner reads from it")
{
  for (const Setup& setup : setups()) {
    INFO(name_of(setup));
    Job job(model(), setup);
    std::vector<std::uint32_t> expected;
    for (std::uint32_t block = 0; block < job.layout.blocks(); ++block) {
      const ParameterSpec& spec = job.parameters[job.layout.parameter_of(block)];
      if (spec.placement == Placement::replicated && spec.gradient == ReplicaGradient::identical &&
          job.block_of(block) % job.degree != static_cast<std::size_t>(job.slot)) {
        expected.push_back(block);
      }
    }
    CHECK(job.exchange.unread_blocks() == expected);
    job.close();
  }
}

TEST_CASE("fewer blocks than ranks, and none at all, exchange as well")
{
  for (const Setup& setup : setups()) {
    for (const ParameterSet& parameters : {one_block(), ParameterSet{}}) {
      INFO(name_of(setup) << ", " << parameters.size() << " parameters");
      Job job(parameters, setup);
      job.sum();
      CHECK(job.wrong_sums() == 0);
      job.update(2, false);
      job.exchange.publish();
      CHECK(job.wrong_weights(job.exchange.weights(), 2) == 0);
      on_all_ranks(true);
      job.close();
    }
  }
}

TEST_CASE("messages of any size limit carry the same bits")
{
  for (int domain_size : {1, 2}) {
    for (int degree : {1, 2}) {
      if (world_size() % degree != 0) continue;
      for (std::size_t message_bytes : {1, 20000, 65536}) {
        Setup setup{degree, true, domain_size, Weights::uneven, {}};
        setup.options.message_bytes = message_bytes;
        INFO(name_of(setup) << ", messages of " << message_bytes);
        Job job(model(), setup);
        job.sum();
        CHECK(job.wrong_sums() == 0);
        job.update(3, false);
        CHECK(job.wrong_weights(job.exchange.staged_weights(), 3) == 0);
        on_all_ranks(true);
        job.close();
      }
    }
  }
}

TEST_CASE("pieces in private and in shared memory begin on a cache line, zeroed")
{
  for (bool shared : {true, false}) {
    Job job(model(), {1, shared, 0, Weights::equal, {}});
    for (const void* base : {static_cast<const void*>(job.exchange.contribution()),
                             static_cast<const void*>(job.exchange.weights()),
                             static_cast<const void*>(job.exchange.staged_weights())}) {
      CHECK(reinterpret_cast<std::uintptr_t>(base) % 64 == 0);
    }
    for (const void* source : job.exchange.sources()) {
      CHECK(reinterpret_cast<std::uintptr_t>(source) % 64 == 0);
    }
    const std::vector<std::byte> zero(job.layout.bytes(), std::byte{0});
    CHECK(std::memcmp(job.exchange.contribution(), zero.data(), zero.size()) == 0);
    CHECK(std::memcmp(job.exchange.weights(), zero.data(), zero.size()) == 0);
    CHECK(std::memcmp(job.exchange.staged_weights(), zero.data(), zero.size()) == 0);
    on_all_ranks(true);
    job.close();
  }
}

TEST_CASE("ranks of one slot and domain share one buffer of weights")
{
  Job job(model(), {});
  if (world_size() > 1) {
    // A word that rank 0 writes into its weights is in everybody's.
    if (job.rank == 0) std::memset(const_cast<std::byte*>(job.exchange.weights()), 0x5a, 8);
    job.confirm();
    CHECK(job.exchange.weights()[7] == std::byte{0x5a});
    on_all_ranks(true);
  }
  job.close();
}

TEST_CASE("bytes to other domains are counted, and there are none within one")
{
  const int size = world_size();
  {
    Job job(model(), {1, true, 0, Weights::uneven, {}});
    job.sum();
    job.update(1, false);
    CHECK(job.exchange.bytes_sent() == 0);
    CHECK(job.exchange.bytes_received() == 0);
    on_all_ranks(true);
    job.close();
  }
  Job job(model(), {1, false, 0, Weights::uneven, {}});
  const auto shard_bytes = [&](int r) {
    std::size_t bytes = 0;
    for (std::uint32_t b : job.plan.shard(r)) {
      bytes += block_elements * bytes_of(job.layout.precision_of(b));
    }
    return bytes;
  };
  const std::size_t mine = shard_bytes(job.rank);
  const std::size_t others = job.layout.bytes() - mine;
  for (int step = 0; step < 2; ++step) {
    job.sum();
    CHECK(job.exchange.bytes_sent() == others);
    CHECK(job.exchange.bytes_received() == mine * (size - 1));
    job.update(1, false);
    CHECK(job.exchange.bytes_sent() == others + mine * (size - 1));
    CHECK(job.exchange.bytes_received() == mine * (size - 1) + others);
  }
  job.close();
}

TEST_CASE("too little shared memory in one domain turns the whole job to messages")
{
  if (world_size() == 1) return;
  Setup setup{1, true, 2, Weights::uneven, {}};
  // Only the first domain lacks space; the job agrees all the same.
  setup.options.shared_memory_limit = world_rank() < 2 ? 100000 : ~std::size_t{0};
  Job job(model(), setup);
  const std::string text = job.exchange.description();
  CHECK(text.find("messages (" + std::to_string(world_size()) + " ranks; rank 0: ") == 0);
  CHECK(text.find("the limit is 97.7 KiB") != std::string::npos);
  job.sum();
  CHECK(job.wrong_sums() == 0);
  job.update(7, false);
  CHECK(job.wrong_weights(job.exchange.staged_weights(), 7) == 0);
  on_all_ranks(true);
  job.close();
}

TEST_CASE("the way of the data is described the same on all ranks")
{
  const std::string ranks = std::to_string(world_size());
  const auto description = [](const Setup& setup) {
    Job job(one_block(), setup);
    const std::string text = job.exchange.description();
    job.close();
    return text;
  };
  if (world_size() == 1) {
    CHECK(description({}) == "one rank, nothing to exchange");
    return;
  }
  CHECK(description({}) == "shared memory (" + ranks + " ranks)");
  CHECK(description({.shared = false}) ==
        "messages (" + ranks + " ranks; sharing of memory is off)");
  CHECK(description({.domain_size = 1}) ==
        "messages (" + ranks + " ranks; no two ranks share memory)");
  if (world_size() == 4) {
    CHECK(description({.domain_size = 3}) ==
          "shared memory and messages (4 ranks in 2 memory domains)");
  }
}

TEST_CASE("two exchanges over one topology do not mix their messages")
{
  Topology topology(MPI_COMM_WORLD, {.domain_size = 2});
  const ParameterSet small = one_block();
  const ParameterSet large = model();
  const int size = topology.size();
  const ShardPlan first_plan(small, size, 1), second_plan(large, size, 1);
  Exchange first(topology, first_plan, {}), second(topology, second_plan, {});
  std::memset(first.contribution(), 1, first_plan.layout(0).bytes());
  std::memset(second.contribution(), 2, second_plan.layout(0).bytes());
  for (Exchange* exchange : {&first, &second}) exchange->enter();
  for (Exchange* exchange : {&first, &second}) exchange->exchange();
  for (const void* source : first.sources()) {
    CHECK(*static_cast<const unsigned char*>(source) == 1);
  }
  for (const void* source : second.sources()) {
    CHECK(*static_cast<const unsigned char*>(source) == 2);
  }
  on_all_ranks(true);
  second.close();
  first.close();
  first.close();
  topology.close();
}

TEST_CASE("reduce_scatter gives each owner the sum over its data-parallel axis")
{
  for (Setup setup : setups()) {
    setup.options.method = Method::reduce_scatter;
    for (std::size_t message_bytes : {std::size_t{1} << 30, std::size_t{40000}, std::size_t{1}}) {
      setup.options.message_bytes = message_bytes;
      INFO(name_of(setup) << ", rounds of " << message_bytes);
      Job job(model(setup.degree == 1), setup);
      CHECK(job.exchange.fp32_contributions());
      for (int step = 0; step < 2; ++step) {
        job.sum();
        // Partial replicas of one slot are that slot's sum, so the definition is the same.
        CHECK(job.wrong_sums() == 0);
      }
      CHECK(job.exchange.unread_blocks().size() == job.layout.blocks());
      CHECK(job.exchange.description().find("MPI_Reduce_scatter; weights by ") == 0);
      job.update(2, false);
      CHECK(job.wrong_weights(job.exchange.staged_weights(), 2) == 0);
      on_all_ranks(true);
      job.close();
    }
  }
}

TEST_CASE("an exchange that cannot be is refused by all ranks with the same words")
{
  Setup reduce{.options = {.method = Method::reduce_scatter}};
  if (world_size() % 2 == 0) {
    reduce.degree = 2;
    CHECK(common_error(reduce, model()).find("parameter 1 has partial gradients on 2") == 0);
    CHECK(common_error(reduce, model(false)) == "accepted");
  }
  Setup nothing;
  nothing.options.message_bytes = 0;
  CHECK(common_error(nothing, one_block()).find("messages of 0 bytes") == 0);

  if (world_size() == 1) return;
  const int last = world_size() - 1;
  Setup differs;
  differs.options.fp32_wire = world_rank() == last;
  CHECK(common_error(differs, one_block()) ==
        "rank " + std::to_string(last) +
            " disagrees with rank 0 on fp32_wire; give all ranks the same options");
  CHECK(common_error({}, world_rank() == last ? model() : one_block()) ==
        "rank " + std::to_string(last) +
            " disagrees with rank 0 on the shard plan; give all ranks the same options");

  Topology topology(MPI_COMM_WORLD);
  const ParameterSet parameters = one_block();
  // One rank has a plan for a job of another size.
  const ShardPlan plan(parameters, world_rank() == last ? world_size() + 1 : world_size(), 1);
  CHECK_THROWS_AS(Exchange(topology, plan, {}), InvalidArgument);
  topology.close();
}

TEST_CASE("a failing call on a window of shared memory comes back, too")
{
  windows_returning_errors = 0;
  Job job(one_block(), {});
  CHECK(windows_returning_errors == (job.exchange.description().find("shared") == 0));
  job.close();
}

TEST_CASE("memory that one rank cannot get is an error of all, and the job goes on")
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // a limit on addresses ends a sanitized process
#endif
  ParameterSet large;
  large.add({"w", {std::size_t{1} << 27}});
  const int last = world_size() - 1;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  if (world_rank() == last) {
    // Less than what the 1.5 GiB of contribution and weights need on top of what MPI has mapped.
    rlimit tight = before;
    std::size_t pages = 0;
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    REQUIRE(file != nullptr);
    REQUIRE(std::fscanf(file, "%zu", &pages) == 1);
    std::fclose(file);
    tight.rlim_cur = pages * 4096 + (std::size_t{256} << 20);
    setrlimit(RLIMIT_AS, &tight);
  }
  const std::string text = common_error({.shared = false}, large);
  setrlimit(RLIMIT_AS, &before);
  CHECK(text.find("rank " + std::to_string(last) + ": cannot allocate 1.5 GiB") == 0);
  CHECK(common_error({}, one_block()) == "accepted");
}
