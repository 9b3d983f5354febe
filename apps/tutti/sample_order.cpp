// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The permutation of each epoch.
#include "sample_order.hpp"

#include <numeric>
#include <utility>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"

namespace tutti::apps {
namespace {

/// Random words at (seed, counter): the sequence of splitmix64.
class Splitmix64 {
 public:
  explicit Splitmix64(std::uint64_t state) : state_(state) {}
  std::uint64_t next()
  {
    const std::uint64_t word = mix64(state_);
    state_ += 0x9e3779b97f4a7c15u;
    return word;
  }
  /// Uniform in [0, bound), bound > 0.
  std::uint32_t below(std::uint32_t bound)
  {
    std::uint64_t product = (next() >> 32) * bound;
    const std::uint32_t threshold = (0u - bound) % bound;
    while (static_cast<std::uint32_t>(product) < threshold) product = (next() >> 32) * bound;
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  std::uint64_t state_;
};

}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, std::uint32_t samples) : seed_(seed), samples_(samples)
{
  if (samples == 0)
    throw InvalidArgument("a sample order of no samples (samples is 0); give at least one");
}

std::uint32_t SampleOrder::id(std::uint64_t position) const
{
  return epoch(position / samples_).ids[position % samples_];
}

const SampleOrder::Epoch& SampleOrder::epoch(std::uint64_t number) const
{
  Epoch& epoch = epochs_[number % 2];
  if (epoch.number == number) return epoch;
  epoch.ids.resize(samples_);
  std::iota(epoch.ids.begin(), epoch.ids.end(), 0u);
  Splitmix64 random(mix64(mix64(hash_of("sample order"), seed_), number));
  for (std::uint32_t i = samples_ - 1; i > 0; --i)
    std::swap(epoch.ids[i], epoch.ids[random.below(i + 1)]);
  epoch.number = number;
  return epoch;
}

}  // namespace tutti::apps
