// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The two streaming loops that bound what a memory-bound kernel can reach: a triad with
// non-temporal stores and an in-place multiply. memory_bound.cpp times them.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_stream.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void triad(float* to, const float* a, const float* b, float factor, std::size_t count)
{
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  for (std::size_t i = 0; i < count; i += hn::MaxLanes(d))
    hn::Stream(hn::Add(hn::Mul(hn::Load(d, a + i), f), hn::Load(d, b + i)), d, to + i);
  hwy::FlushStream();
}

void scale(float* values, float factor, std::size_t count)
{
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  for (std::size_t i = 0; i < count; i += hn::MaxLanes(d))
    hn::Store(hn::Mul(hn::Load(d, values + i), f), d, values + i);
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_stream_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.triad = &HWY_NAMESPACE::triad;
  kernels.scale = &HWY_NAMESPACE::scale;
}
}  // namespace tutti::detail
