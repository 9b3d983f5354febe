// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Merging ballots: any order and any tree of merges gives the same sum, and a disagreement names
// the odd rank.
#include "tutti/ballot.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "catch.hpp"

using namespace tutti;

namespace {

Ballot random_ballot(std::uint32_t rank, std::mt19937_64& random)
{
  Ballot ballot;
  for (auto& agreed : ballot.agreed) agreed = Agreement(random() % 3, rank);
  ballot.participants = random() % 4;
  ballot.samples = random() % 100;
  ballot.nonfinite = random() % 2;
  ballot.nonfinite_losses = random() % 2;
  ballot.largest_finite = random() % 1000;
  ballot.sum_of_squares.add(
      std::ldexp(static_cast<double>(random() % 1000), static_cast<int>(random() % 200) - 100));
  ballot.loss.add(-static_cast<double>(random() % 1000) / 7);
  if (random() % 2) {
    ballot.offender.stage = random() % 3;
    ballot.offender.parameter = random() % 3;
    ballot.offender.element = random() % 3;
    ballot.offender.rank = rank;
  }
  if (random() % 4 == 0) {
    ballot.failure.phase = random() % 3;
    ballot.failure.rank = rank;
  }
  ballot.sum_of_squares.normalize();
  ballot.loss.normalize();
  return ballot;
}

Ballot normalized(Ballot ballot)
{
  ballot.sum_of_squares.normalize();
  ballot.loss.normalize();
  return ballot;
}

}  // namespace

TEST_CASE("merging ballots does not depend on order or grouping")
{
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t ranks = 1 + random() % 8;
    std::vector<Ballot> ballots;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      ballots.push_back(random_ballot(rank, random));
    Ballot expected = ballots[0];
    for (std::size_t rank = 1; rank < ranks; ++rank) expected.merge(ballots[rank]);
    for (int shuffle = 0; shuffle < 10; ++shuffle) {
      std::vector<Ballot> rest = ballots;
      while (rest.size() > 1) {  // merge two at random: any tree
        std::shuffle(rest.begin(), rest.end(), random);
        Ballot last = rest.back();
        rest.pop_back();
        rest.back().merge(last);
      }
      REQUIRE(normalized(rest[0]) == normalized(expected));
    }
  }
}

TEST_CASE("a disagreement names the rank that holds the rarer value")
{
  for (std::uint32_t odd = 0; odd < 5; ++odd)
    for (std::uint64_t other : {3u, 9u}) {
      Agreement sum(odd == 0 ? other : 5, 0);
      for (std::uint32_t rank = 1; rank < 5; ++rank)
        sum.merge(Agreement(rank == odd ? other : 5, rank));
      REQUIRE_FALSE(sum.agreed());
      REQUIRE(sum.odd_rank() == odd);
    }
}

TEST_CASE("two ranks that disagree: the higher one is named")
{
  for (std::uint64_t second : {3u, 9u}) {
    Agreement sum(5, 0);
    sum.merge(Agreement(second, 1));
    REQUIRE(sum.odd_rank() == 1);
  }
}

TEST_CASE("the first offender wins by stage, then micro-batch, parameter, element and rank")
{
  Offender none, loss, gradient, later;
  loss.stage = static_cast<std::uint32_t>(Stage::loss);
  loss.rank = 3;
  gradient.stage = later.stage = static_cast<std::uint32_t>(Stage::micro_batch);
  gradient.parameter = later.parameter = 0;
  gradient.element = 5;
  later.element = 6;
  REQUIRE_FALSE(none.exists());
  REQUIRE(std::min({none, later, gradient, loss}) == loss);
  REQUIRE(std::min({none, later, gradient}) == gradient);
}
