// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD bodies of Device::accumulate and Device::scan. Both take any number of elements at any
// element alignment; a piece of block_elements is the unit in which nonfinite values are looked for
// again.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_accumulate.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/highway.h>

#include "block_bodies.hpp"
#include "simd_scan.hpp"
#include "simd_vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {

enum class Into { nothing, first, sum };

/// At most block_elements elements.
template <Precision precision, Into into>
BlockScan accumulate_piece(float* sum, const Stored<precision>* gradient, std::size_t elements)
{
  const F32 df;
  const I32 di;
  auto largest = hn::Zero(di);
  std::size_t i = 0;
  for (; i + vector_lanes <= elements; i += vector_lanes) {
    const auto x = load<precision>(gradient + i);
    if constexpr (into == Into::first) hn::StoreU(hn::Add(hn::Zero(df), x), df, sum + i);
    if constexpr (into == Into::sum) hn::StoreU(hn::Add(hn::LoadU(df, sum + i), x), df, sum + i);
    largest = hn::Max(largest, magnitude_bits(x));
  }
  std::uint32_t top = static_cast<std::uint32_t>(largest_lane(largest));
  for (; i < elements; ++i) {
    const float x = load_element(gradient, precision, i);
    if constexpr (into == Into::first) sum[i] = 0.0f + x;
    if constexpr (into == Into::sum) sum[i] = sum[i] + x;
    const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
    if (magnitude > top) top = magnitude;
  }
  if (HWY_UNLIKELY(top >= 0x7f800000u)) return scan_elements(gradient, precision, elements);
  BlockScan scan;
  scan.largest_finite = top;
  return scan;
}

template <Precision precision, Into into>
BlockScan accumulate_all(float* sum, const void* gradient, std::size_t elements)
{
  const auto* from = static_cast<const Stored<precision>*>(gradient);
  BlockScan whole;
  for (std::size_t block = 0; block < blocks_of(elements); ++block) {
    const std::size_t start = block * block_elements;
    append_scan(whole,
                accumulate_piece<precision, into>(into == Into::nothing ? nullptr : sum + start,
                                                  from + start, elements_in_block(elements, block)),
                block);
  }
  return whole;
}

template <Into into>
BlockScan accumulate_all(float* sum, const void* gradient, Precision precision,
                         std::size_t elements)
{
  switch (precision) {
    case Precision::fp16:
      return accumulate_all<Precision::fp16, into>(sum, gradient, elements);
    case Precision::bf16:
      return accumulate_all<Precision::bf16, into>(sum, gradient, elements);
    case Precision::fp32:
      break;
  }
  return accumulate_all<Precision::fp32, into>(sum, gradient, elements);
}

BlockScan accumulate(float* sum, const void* gradient, Precision precision, std::size_t elements,
                     bool first)
{
  return first ? accumulate_all<Into::first>(sum, gradient, precision, elements)
               : accumulate_all<Into::sum>(sum, gradient, precision, elements);
}

BlockScan scan(const void* values, Precision precision, std::size_t elements)
{
  return accumulate_all<Into::nothing>(nullptr, values, precision, elements);
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_accumulate_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.accumulate = &HWY_NAMESPACE::accumulate;
  kernels.scan = &HWY_NAMESPACE::scan;
}
}  // namespace tutti::detail
