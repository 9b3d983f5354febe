// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD body of Device::sum_blocks: contributions are added element by element in the order of the
// table, in fp32, and the sum is scanned in registers on its way out.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_sum.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "simd_scan.hpp"
#include "simd_vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {

/// One block; `fixed` sources (0: `sources`, at least one).
template <Precision precision, std::size_t fixed, bool stream>
BlockScan sum_block(const void* const* table, std::size_t sources, float* sum)
{
  using T = Stored<precision>;
  const I32 di;
  // A copy of the table's head, so that the compiler keeps the pointers in registers: what is
  // stored through `sum` could otherwise be the table.
  const T* head[fixed == 0 ? 1 : fixed];
  for (std::size_t s = 0; s < (fixed == 0 ? 1 : fixed); ++s)
    head[s] = static_cast<const T*>(table[s]);
  auto largest = hn::Zero(di);
  SquareLanes squares;
  for (std::size_t i = 0; i < block_elements; i += 32) {
    HWY_ALIGN Floats x[32 / vector_lanes];
    for (std::size_t part = 0; part < 32 / vector_lanes; ++part)
      x[part] = load<precision>(head[0] + i + part * vector_lanes);
    if constexpr (fixed > 0) {
      for (std::size_t s = 1; s < fixed; ++s)
        for (std::size_t part = 0; part < 32 / vector_lanes; ++part)
          x[part] = hn::Add(x[part], load<precision>(head[s] + i + part * vector_lanes));
    } else {
      for (std::size_t s = 1; s < sources; ++s) {
        const T* from = static_cast<const T*>(table[s]) + i;
        for (std::size_t part = 0; part < 32 / vector_lanes; ++part)
          x[part] = hn::Add(x[part], load<precision>(from + part * vector_lanes));
      }
    }
    for (std::size_t part = 0; part < 32 / vector_lanes; ++part) {
      store_aligned<stream>(x[part], sum + i + part * vector_lanes);
      largest = hn::Max(largest, magnitude_bits(x[part]));
      squares.add(x[part], part);
    }
  }
  const std::int32_t top = largest_lane(largest);
  BlockScan scan;
  if (HWY_LIKELY(top < 0x7f800000)) {
    scan.largest_finite = static_cast<std::uint32_t>(top);
    scan.sum_of_squares = squares.total();
  } else {
    scan = scan_elements(sum, Precision::fp32, block_elements);
  }
  return scan;
}

template <Precision precision, bool stream>
BlockScan sum_block(const void* const* table, std::size_t sources, float* sum)
{
  switch (sources) {
    case 1:
      return sum_block<precision, 1, stream>(table, sources, sum);
    case 2:
      return sum_block<precision, 2, stream>(table, sources, sum);
    case 3:
      return sum_block<precision, 3, stream>(table, sources, sum);
    case 4:
      return sum_block<precision, 4, stream>(table, sources, sum);
    default:
      return sum_block<precision, 0, stream>(table, sources, sum);
  }
}

template <bool stream>
BlockScan sum_block(const SumBlocks& work, std::size_t block)
{
  const SumBlock& one = work.block[block];
  const void* const* table = work.sources + one.first_source;
  float* sum = work.sum + block * block_elements;
  if (one.sources == 0) {
    for (std::size_t i = 0; i < block_elements; ++i) sum[i] = 0;
    return {};
  }
  switch (one.precision) {
    case Precision::fp16:
      return sum_block<Precision::fp16, stream>(table, one.sources, sum);
    case Precision::bf16:
      return sum_block<Precision::bf16, stream>(table, one.sources, sum);
    case Precision::fp32:
      break;
  }
  return sum_block<Precision::fp32, stream>(table, one.sources, sum);
}

void sum_blocks(const SumBlocks& work, std::size_t begin, std::size_t end)
{
  for (std::size_t block = begin; block < end; ++block)
    work.scan[block] = work.stream ? sum_block<true>(work, block) : sum_block<false>(work, block);
  if (work.stream) hwy::FlushStream();
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_sum_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.sum_blocks = &HWY_NAMESPACE::sum_blocks;
}
}  // namespace tutti::detail
