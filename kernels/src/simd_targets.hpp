// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which Highway targets the SIMD files are compiled for, and how a file of kernels adds its
// functions to the table of a target. Include it before anything of Highway.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd.hpp"

#if defined(HIGHWAY_HWY_DETECT_TARGETS_H_)
#error "simd_targets.hpp comes before Highway"
#endif

// Three sets suffice: what every processor of the platform has, AVX2 with F16C, and AVX-512.
// Targets between them would only add code; vectors of unknown length (SVE, RVV) cannot be kept in
// arrays.
#define HWY_DISABLED_TARGETS                                                               \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | TUTTI_AVX3_ZEN4 | TUTTI_AVX3_SPR | TUTTI_AVX10_2 | \
   HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#include <hwy/detect_targets.h>

// Targets that not every supported Highway (1.0.3 and newer) knows. Highway's own #if lines above
// read the still undefined names as 0 and decide nothing with them; every later use sees these.
#if defined(HWY_AVX3_ZEN4)
#define TUTTI_AVX3_ZEN4 HWY_AVX3_ZEN4
#else
#define TUTTI_AVX3_ZEN4 0
#endif
#if defined(HWY_AVX3_SPR)
#define TUTTI_AVX3_SPR HWY_AVX3_SPR
#else
#define TUTTI_AVX3_SPR 0
#endif
#if defined(HWY_AVX10_2)
#define TUTTI_AVX10_2 HWY_AVX10_2
#else
#define TUTTI_AVX10_2 0
#endif

namespace tutti::detail {

/// Names a target in an overload set: each SIMD file defines its `add_...` once for every target it
/// is compiled for.
template <std::int64_t target>
using Target = std::integral_constant<std::int64_t, target>;

#define TUTTI_DECLARE_TARGET(target)                         \
  void add_sum_kernels(SimdKernels&, Target<target>);        \
  void add_adam_kernels(SimdKernels&, Target<target>);       \
  void add_accumulate_kernels(SimdKernels&, Target<target>); \
  void add_convert_kernels(SimdKernels&, Target<target>);    \
  void add_digest_kernels(SimdKernels&, Target<target>);     \
  void add_stream_kernels(SimdKernels&, Target<target>)

TUTTI_DECLARE_TARGET(HWY_STATIC_TARGET);
TUTTI_DECLARE_TARGET(HWY_AVX2);
TUTTI_DECLARE_TARGET(HWY_AVX3);

}  // namespace tutti::detail
