// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which sample stands at which position of a run. A pure function of the seed and the number of
// samples: it knows nothing of ranks, windows or skips.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tutti::apps {

/// Epoch e of n samples is positions [e n, (e+1) n): a permutation of 0..n-1 of its own, by
/// Fisher-Yates with splitmix64 seeded from (seed, epoch) and unbiased bounded numbers (Lemire
/// 2019), the same with every library.
class SampleOrder {
 public:
  SampleOrder(std::uint64_t seed, std::uint32_t samples);
  /// The sample id at `position`.
  std::uint32_t id(std::uint64_t position) const;

 private:
  struct Epoch {
    std::uint64_t number = ~std::uint64_t{0};
    std::vector<std::uint32_t> ids;
  };
  const Epoch& epoch(std::uint64_t number) const;
  std::uint64_t seed_;
  std::uint32_t samples_;
  mutable std::array<Epoch, 2> epochs_;  ///< the last even and the last odd one asked for
};

}  // namespace tutti::apps
