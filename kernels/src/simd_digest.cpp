// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD bodies of Device::digest_blocks and digest_elements. The mix of an element's index within
// 4096 is made once for both: per element one mix of 64 bits remains in the former, one product in
// the latter.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_digest.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>

#include "tutti/digest.hpp"
#include "tutti/digest_elements.hpp"
#include "tutti/precision.hpp"

#ifndef TUTTI_DIGEST_TABLE  // of the file's several passes only the first
#define TUTTI_DIGEST_TABLE
namespace tutti::detail {
namespace {

struct MixedIndices {
  alignas(64) std::array<std::uint64_t, block_elements> value;
  MixedIndices()
  {
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = mix64(i);
  }
};

const std::uint64_t* mixed_indices()
{
  static const MixedIndices table;
  return table.value.data();
}

}  // namespace
}  // namespace tutti::detail
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {

/// Sum of mix64(mixed[i] ^ bits of values[i]). A plain loop over integers: the compiler vectorizes
/// the 64-bit products for each target as far as that pays.
template <class Bits>
std::uint64_t digest_block(const Bits* values, const std::uint64_t* mixed)
{
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block_elements; ++i) sum += mix64(mixed[i] ^ values[i]);
  return sum;
}

void digest_blocks(std::uint64_t* digest, const void* values, Precision precision,
                   std::size_t blocks)
{
  const std::uint64_t* mixed = mixed_indices();
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t start = block * block_elements;
    digest[block] = precision == Precision::fp32
                        ? digest_block(static_cast<const std::uint32_t*>(values) + start, mixed)
                        : digest_block(static_cast<const std::uint16_t*>(values) + start, mixed);
  }
}

/// Elements that have the upper key `high` in common: `keys` are the lower ones.
std::uint64_t digest_run(std::uint64_t high, const std::uint64_t* keys, const float* values,
                         std::size_t count)
{
  std::uint64_t sum = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  // K (b + 2^32) = K_low b + ((K_high b + K) << 32): two products of 32 bits.
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<std::uint64_t> words;
  const hn::Repartition<std::uint32_t, decltype(words)> halves;
  const hn::Rebind<std::uint32_t, decltype(words)> bits;
  const std::size_t lanes = hn::Lanes(words);
  const auto highs = hn::Set(words, high);
  auto sums = hn::Zero(words);
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::BitCast(
        halves,
        hn::PromoteTo(words, hn::LoadU(bits, reinterpret_cast<const std::uint32_t*>(values + i))));
    const auto key = hn::Xor(highs, hn::LoadU(words, keys + i));
    const auto upper = hn::MulEven(hn::BitCast(halves, hn::ShiftRight<32>(key)), value);
    const auto lower = hn::MulEven(hn::BitCast(halves, key), value);
    sums = hn::Add(sums, hn::Add(lower, hn::ShiftLeft<32>(hn::Add(upper, key))));
  }
  sum = hn::GetLane(hn::SumOfLanes(words, sums));
#endif
  for (; i < count; ++i)
    sum += (high ^ keys[i]) * (std::bit_cast<std::uint32_t>(values[i]) + (std::uint64_t{1} << 32));
  return sum;
}

std::uint64_t digest_elements(std::uint64_t seed, std::uint64_t first_index, const float* values,
                              std::size_t count)
{
  const std::uint64_t* mixed = mixed_indices();
  static_assert(block_elements == 4096, "the digest is defined with 4096");
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count;) {
    const std::uint64_t index = first_index + i;
    const std::size_t low = index % block_elements;
    const std::size_t run = std::min(count - i, block_elements - low);
    sum += digest_run(mix64(seed, index / block_elements), mixed + low, values + i, run);
    i += run;
  }
  return sum;
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_digest_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.digest_blocks = &HWY_NAMESPACE::digest_blocks;
}
}  // namespace tutti::detail

#if HWY_ONCE
// Integers: every instruction set has the same bits, so none needs to be chosen by the caller.
namespace tutti {
namespace detail {
HWY_EXPORT(digest_elements);
static std::uint64_t dispatched(std::uint64_t seed, std::uint64_t first_index, const float* values,
                                std::size_t count)
{
  return HWY_DYNAMIC_DISPATCH(digest_elements)(seed, first_index, values, count);
}
}  // namespace detail

std::uint64_t digest_elements(std::uint64_t seed, std::uint64_t first_index, const float* values,
                              std::size_t count)
{
  return detail::dispatched(seed, first_index, values, count);
}
}  // namespace tutti
#endif
