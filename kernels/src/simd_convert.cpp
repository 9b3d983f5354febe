// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD body of Device::convert: fp32 rounded into a storage format.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_convert.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/highway.h>

#include <cstring>

#include "simd_vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {

template <Precision precision>
void convert_all(void* to, const float* values, std::size_t elements)
{
  auto* out = static_cast<Stored<precision>*>(to);
  std::size_t i = 0;
  for (; i + vector_lanes <= elements; i += vector_lanes)
    store<precision>(hn::LoadU(F32(), values + i), out + i);
  for (; i < elements; ++i) store_element(out, precision, i, values[i]);
}

void convert(void* to, Precision precision, const float* values, std::size_t elements)
{
  switch (precision) {
    case Precision::fp16:
      return convert_all<Precision::fp16>(to, values, elements);
    case Precision::bf16:
      return convert_all<Precision::bf16>(to, values, elements);
    case Precision::fp32:
      break;
  }
  if (elements != 0) std::memmove(to, values, elements * sizeof(float));
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_convert_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.convert = &HWY_NAMESPACE::convert;
}
}  // namespace tutti::detail
