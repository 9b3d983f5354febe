// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD body of Device::digest_blocks. The mix of an element's index is the same in every block, so
// it is made once; per element one mix of 64 bits remains.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_digest.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/highway.h>

#include <array>

#include "tutti/digest.hpp"
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

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_digest_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.digest_blocks = &HWY_NAMESPACE::digest_blocks;
}
}  // namespace tutti::detail
