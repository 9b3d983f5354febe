// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sample order is a permutation an epoch, its own for each seed and epoch, and the same for
// ever.
#include "sample_order.hpp"

#include <algorithm>
#include <numeric>

#include "catch.hpp"
#include "tutti/error.hpp"

using namespace tutti::apps;

namespace {
std::vector<std::uint32_t> epoch(const SampleOrder& order, std::uint64_t number,
                                 std::uint32_t samples)
{
  std::vector<std::uint32_t> ids(samples);
  for (std::uint32_t i = 0; i < samples; ++i) ids[i] = order.id(number * samples + i);
  return ids;
}
}  // namespace

TEST_CASE("Each epoch holds every sample once, in an order of its own", "[sample_order]")
{
  for (std::uint32_t samples : {1u, 2u, 7u, 1000u, 60000u}) {
    const SampleOrder order(5, samples);
    std::vector<std::uint32_t> all(samples);
    std::iota(all.begin(), all.end(), 0u);
    for (std::uint64_t e : {0u, 1u, 2u, 1000000u}) {
      std::vector<std::uint32_t> ids = epoch(order, e, samples);
      if (samples > 100) CHECK(ids != epoch(order, e + 1, samples));
      if (samples > 100) CHECK(ids != epoch(SampleOrder(6, samples), e, samples));
      std::sort(ids.begin(), ids.end());
      CHECK(ids == all);
    }
  }
}

TEST_CASE("An id depends on its position alone, whatever was asked before", "[sample_order]")
{
  const SampleOrder forward(1, 50), jumping(1, 50);
  std::vector<std::uint32_t> ids;
  for (std::uint64_t p = 0; p < 250; ++p) ids.push_back(forward.id(p));
  for (std::uint64_t p = 250; p-- > 0;) CHECK(jumping.id((p * 37) % 250) == ids[(p * 37) % 250]);
}

TEST_CASE("The order is the one that earlier versions made", "[sample_order]")
{
  const SampleOrder order(1, 12);
  // A changed order would break the resumption of every run: these were written down once.
  CHECK(epoch(order, 0, 12) == std::vector<std::uint32_t>{9, 8, 10, 7, 6, 0, 3, 2, 5, 1, 11, 4});
  CHECK(epoch(order, 1, 12) == std::vector<std::uint32_t>{8, 7, 4, 6, 9, 5, 2, 1, 3, 10, 0, 11});
}

TEST_CASE("Every sample is equally likely to come first", "[sample_order]")
{
  // 4000 epochs of 8: 500 expected each, standard deviation 21.
  const SampleOrder order(3, 8);
  std::vector<int> first(8);
  for (std::uint64_t e = 0; e < 4000; ++e) ++first[order.id(8 * e)];
  for (int count : first) CHECK(std::abs(count - 500) < 110);
}

TEST_CASE("An order of no samples is refused", "[sample_order]")
{
  CHECK_THROWS_AS(SampleOrder(1, 0), tutti::InvalidArgument);
}
