// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every block has one owner, shares follow the weights, and the hash knows every difference.
#include "tutti/shard_plan.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "tutti/error.hpp"

using namespace tutti;

namespace {

ParameterSet random_parameters(std::mt19937& random)
{
  const auto upto = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n + 1));
  };
  ParameterSet parameters;
  const int count = upto(6);
  for (int p = 0; p < count; ++p) {
    ParameterSpec spec{.name = "p" + std::to_string(p), .shape = {}};
    const int axes = upto(3);
    for (int a = 0; a < axes; ++a) spec.shape.push_back(static_cast<std::size_t>(1 + upto(60)));
    spec.precision = static_cast<Precision>(upto(2));
    spec.gradient = static_cast<ReplicaGradient>(upto(1));
    if (axes > 0 && upto(1) == 1) {
      spec.placement = Placement::split;
      spec.split_axis = upto(axes - 1);
    }
    parameters.add(spec);
  }
  return parameters;
}

std::string message_of(const std::vector<double>& weights, int data_parallel, int model_parallel)
{
  try {
    ShardPlan(ParameterSet{}, data_parallel, model_parallel, weights);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

// Blocks that each rank of a one-slot job of one parameter owns.
std::vector<std::size_t> shares(std::size_t blocks, const std::vector<double>& weights)
{
  ParameterSet parameters;
  parameters.add({.name = "w", .shape = {blocks * block_elements}});
  const ShardPlan plan(parameters, static_cast<int>(weights.size()), 1, weights);
  std::vector<std::size_t> counts;
  for (int r = 0; r < plan.size(); ++r) counts.push_back(plan.shard(r).size());
  return counts;
}

}  // namespace

TEST_CASE("every block of every parameter has exactly one owner")
{
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const int data_parallel = 1 + static_cast<int>(random() % 6);
    const int model_parallel = 1 + static_cast<int>(random() % 4);
    const ParameterSet parameters = random_parameters(random);
    std::vector<double> weights;
    for (int r = 0; r < data_parallel * model_parallel; ++r) {
      // A third of the ranks owns nothing; d = 0 always has a weight.
      weights.push_back(random() % 3 == 0 && r >= model_parallel ? 0.0 : 1.0 + random() % 1000);
    }
    const ShardPlan plan(parameters, data_parallel, model_parallel, weights);
    INFO("round " << round << ", D " << data_parallel << ", M " << model_parallel);

    // By what a block means: parameter, the slot of a split one (0 for replicas), block in
    // parameter.
    std::map<std::tuple<std::size_t, int, std::size_t>, int> owners;
    for (int r = 0; r < plan.size(); ++r) {
      const int slot = r % model_parallel;
      const SlotLayout& layout = plan.layout(slot);
      std::uint32_t previous = 0;
      for (std::uint32_t block : plan.shard(r)) {
        REQUIRE((block == plan.shard(r).front() || block > previous));
        previous = block;
        const std::size_t p = layout.parameter_of(block);
        const std::size_t b = block - layout.piece(p).first_block;
        const bool split = parameters[p].placement == Placement::split;
        if (!split) REQUIRE(b % model_parallel == static_cast<std::size_t>(slot));
        REQUIRE(weights[r] > 0);
        REQUIRE(owners.emplace(std::tuple{p, split ? slot : 0, b}, r).second);
      }
    }
    std::size_t blocks = 0;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const bool split = parameters[p].placement == Placement::split;
      for (int m = 0; m < (split ? model_parallel : 1); ++m)
        blocks += plan.layout(m).piece(p).blocks;
    }
    REQUIRE(owners.size() == blocks);

    // owner() says the same from the side of every reader.
    for (int m = 0; m < model_parallel; ++m) {
      for (std::size_t block = 0; block < plan.layout(m).blocks(); ++block) {
        const std::size_t p = plan.layout(m).parameter_of(block);
        const std::size_t b = block - plan.layout(m).piece(p).first_block;
        const bool split = parameters[p].placement == Placement::split;
        const int expected = owners.at({p, split ? m : 0, b});
        const ShardPlan::Owner owner = plan.owner(m, block);
        REQUIRE(owner.rank == expected);
        REQUIRE(owner.block == plan.layout(expected % model_parallel).piece(p).first_block + b);
        REQUIRE(plan.replicated(m, block) == !split);
      }
    }
  }
}

TEST_CASE("shares are whole blocks by largest remainder")
{
  CHECK(shares(10, {1, 1, 1}) == std::vector<std::size_t>{4, 3, 3});  // ties: the lower rank
  CHECK(shares(10, {1, 2, 2}) == std::vector<std::size_t>{2, 4, 4});
  CHECK(shares(7, {1, 1.5, 0, 2}) == std::vector<std::size_t>{2, 2, 0, 3});
  CHECK(shares(2, {1, 1, 1, 1}) ==
        std::vector<std::size_t>{1, 1, 0, 0});  // fewer blocks than ranks
  CHECK(shares(5, {0, 0, 3}) == std::vector<std::size_t>{0, 0, 5});
  CHECK(shares(1, {1, 5}) == std::vector<std::size_t>{0, 1});
}

TEST_CASE("weights of any magnitude hand out every block")
{
  CHECK(shares(10, {1e308, 1e308, 1e308}) == std::vector<std::size_t>{4, 3, 3});
  CHECK(shares(10, {5e-324, 5e-324}) == std::vector<std::size_t>{5, 5});
  CHECK(shares(10, {1e308, 1e-308}) == std::vector<std::size_t>{10, 0});
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> weights(1 + random() % 40);
    for (double& w : weights) w = std::exp(static_cast<double>(random() % 60) - 30);
    const std::size_t blocks = random() % 300;
    if (blocks == 0) continue;
    double sum = 0;
    for (double w : weights) sum += w;
    std::size_t total = 0;
    const std::vector<std::size_t> share = shares(blocks, weights);
    for (std::size_t r = 0; r < share.size(); ++r) {
      total += share[r];
      // Within one block of what is due.
      CHECK(std::abs(static_cast<double>(share[r]) -
                     static_cast<double>(blocks) * weights[r] / sum) < 1 + 1e-9);
    }
    CHECK(total == blocks);
  }
}

TEST_CASE("weights that cannot make a plan are refused")
{
  CHECK(message_of({1, 1, 1}, 2, 1).find("3 rank weights do not fit 2 ranks") == 0);
  CHECK(message_of({1, -1}, 2, 1).find("rank 1 has a weight of -1") == 0);
  CHECK(message_of({1, std::nan("")}, 2, 1).find("rank 1 has a weight of nan") == 0);
  CHECK(message_of({std::numeric_limits<double>::infinity(), 1}, 2, 1).find("rank 0") == 0);
  // World rank d * M + m: slot 1 is ranks 1 and 3.
  CHECK(message_of({1, 0, 1, 0}, 2, 2).find("nobody can own the blocks of model-parallel slot 1") ==
        0);
  CHECK(message_of({0, 1, 1, 0}, 2, 2) == "accepted");
  CHECK(message_of({}, 0, 1).find("not possible") != std::string::npos);
}

TEST_CASE("the hash of a plan changes with the parameters, the degrees and the owners")
{
  const auto plan_hash = [](std::size_t elements, Precision precision, int d, int m,
                            const std::vector<double>& weights) {
    ParameterSet parameters;
    parameters.add({.name = "w", .shape = {elements}, .precision = precision});
    return ShardPlan(parameters, d, m, weights).hash();
  };
  const std::size_t n = 12 * block_elements;
  const std::set<std::uint64_t> hashes{
      plan_hash(n, Precision::fp32, 4, 1, {}),
      plan_hash(n, Precision::fp32, 2, 2, {}),
      plan_hash(n, Precision::fp32, 1, 4, {}),
      plan_hash(n, Precision::fp32, 2, 1, {}),
      plan_hash(n - 1, Precision::fp32, 4, 1, {}),
      plan_hash(n, Precision::fp16, 4, 1, {}),
      plan_hash(n, Precision::fp32, 4, 1, {1, 1, 1, 2}),
      plan_hash(n, Precision::fp32, 4, 1, {2, 1, 1, 1}),
      plan_hash(n, Precision::fp32, 4, 1, {0, 1, 1, 1}),
  };
  CHECK(hashes.size() == 9);
  CHECK(plan_hash(n, Precision::fp32, 4, 1, {}) ==
        plan_hash(n, Precision::fp32, 4, 1, {3, 3, 3, 3}));
}
