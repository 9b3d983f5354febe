// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD bodies of Device::digest_blocks and digest_elements. In the former the mix of an element's
// index is the same in every block, so it is made once; per element one mix of 64 bits remains. The
// latter has three.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_digest.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/highway.h>

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

/// What digest_elements adds for one element. `mixed_seed`: mix64(seed).
HWY_INLINE std::uint64_t element(std::uint64_t mixed_seed, std::uint64_t index, float value)
{
  return mix64(mix64(mix64(mixed_seed ^ index)) ^ std::bit_cast<std::uint32_t>(value));
}

#if HWY_TARGET == HWY_AVX2
// There is no product of 64 bits: three of 32 make one, which is hardly faster than the scalar one.
// Both together keep both kinds of multipliers busy.
namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::ScalableTag<std::uint64_t>;
using WordVector = hn::Vec<Words>;

template <std::uint64_t factor>
HWY_INLINE WordVector product(WordVector x)
{
  const Words words;
  const hn::Repartition<std::uint32_t, Words> halves;
  const auto low = hn::BitCast(halves, hn::Set(words, factor & 0xffffffffu));
  const auto high = hn::BitCast(halves, hn::Set(words, factor >> 32));
  const auto x_low = hn::BitCast(halves, x);
  const auto x_high = hn::BitCast(halves, hn::ShiftRight<32>(x));
  const auto cross = hn::Add(hn::MulEven(x_high, low), hn::MulEven(x_low, high));
  return hn::Add(hn::MulEven(x_low, low), hn::ShiftLeft<32>(cross));
}

HWY_INLINE WordVector mix(WordVector x)
{
  x = hn::Add(x, hn::Set(Words(), 0x9e3779b97f4a7c15u));
  x = product<0xbf58476d1ce4e5b9u>(hn::Xor(x, hn::ShiftRight<30>(x)));
  x = product<0x94d049bb133111ebu>(hn::Xor(x, hn::ShiftRight<27>(x)));
  return hn::Xor(x, hn::ShiftRight<31>(x));
}

std::uint64_t digest_elements(std::uint64_t seed, std::uint64_t first_index, const float* values,
                              std::size_t count)
{
  const Words words;
  const hn::Rebind<std::uint32_t, Words> bits;
  const std::size_t lanes = hn::Lanes(words);
  const std::uint64_t mixed_seed = mix64(seed);
  const WordVector mixed_seeds = hn::Set(words, mixed_seed);
  WordVector sums = hn::Zero(words);
  std::uint64_t sum = 0;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto value =
        hn::PromoteTo(words, hn::LoadU(bits, reinterpret_cast<const std::uint32_t*>(values + i)));
    const auto index = hn::Iota(words, first_index + i);
    sums = hn::Add(sums, mix(hn::Xor(mix(mix(hn::Xor(mixed_seeds, index))), value)));
    for (std::size_t k = i + lanes; k < i + 2 * lanes; ++k)
      sum += element(mixed_seed, first_index + k, values[k]);
  }
  for (; i < count; ++i) sum += element(mixed_seed, first_index + i, values[i]);
  return sum + hn::GetLane(hn::SumOfLanes(words, sums));
}
#else
std::uint64_t digest_elements(std::uint64_t seed, std::uint64_t first_index, const float* values,
                              std::size_t count)
{
  const std::uint64_t mixed_seed = mix64(seed);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += element(mixed_seed, first_index + i, values[i]);
  return sum;
}
#endif

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
