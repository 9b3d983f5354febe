// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The mathematics of the block kernels, written once for every backend without naming one: what one
// of the 32 lanes of a block does, and how two lanes are combined. Who runs the lanes is
// portable_kernels.hpp. The SIMD files compute the same in vectors and must give the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tutti/block.hpp"
#include "tutti/digest.hpp"
#include "tutti/half.hpp"

namespace tutti::detail {

/// Lanes of a block: element i belongs to lane i mod 32, and a lane visits its elements in order.
inline constexpr int lanes = 32;

// On devices the rounded intrinsics are used: nvcc never contracts them, whatever its flags are.
#if defined(__CUDA_ARCH__)
TUTTI_HD inline float add(float a, float b) { return __fadd_rn(a, b); }
TUTTI_HD inline float subtract(float a, float b) { return __fsub_rn(a, b); }
TUTTI_HD inline float multiply(float a, float b) { return __fmul_rn(a, b); }
TUTTI_HD inline float divide(float a, float b) { return __fdiv_rn(a, b); }
TUTTI_HD inline float square_root(float a) { return __fsqrt_rn(a); }
TUTTI_HD inline double add(double a, double b) { return __dadd_rn(a, b); }
TUTTI_HD inline double multiply(double a, double b) { return __dmul_rn(a, b); }
#else
TUTTI_HD inline float add(float a, float b) { return a + b; }
TUTTI_HD inline float subtract(float a, float b) { return a - b; }
TUTTI_HD inline float multiply(float a, float b) { return a * b; }
TUTTI_HD inline float divide(float a, float b) { return a / b; }
TUTTI_HD inline float square_root(float a) { return std::sqrt(a); }
TUTTI_HD inline double add(double a, double b) { return a + b; }
TUTTI_HD inline double multiply(double a, double b) { return a * b; }
#endif

/// What one lane saw.
struct LaneScan {
  double sum_of_squares = 0;
  std::uint32_t largest_finite = 0;
  std::uint32_t nonfinite = 0;
  std::uint32_t first_nonfinite = ~0u;

  TUTTI_HD void see(float value, std::uint32_t index)
  {
    const std::uint32_t magnitude = bits_of(value) & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
      ++nonfinite;
      if (index < first_nonfinite) first_nonfinite = index;
    } else if (magnitude > largest_finite) {
      largest_finite = magnitude;
    }
  }
  TUTTI_HD void see_square(float value)
  {
    const double wide = static_cast<double>(value);
    sum_of_squares = add(sum_of_squares, multiply(wide, wide));
  }
  TUTTI_HD void combine(const LaneScan& other)
  {
    sum_of_squares = add(sum_of_squares, other.sum_of_squares);
    if (other.largest_finite > largest_finite) largest_finite = other.largest_finite;
    nonfinite += other.nonfinite;
    if (other.first_nonfinite < first_nonfinite) first_nonfinite = other.first_nonfinite;
  }
  TUTTI_HD BlockScan result() const
  {
    BlockScan scan;
    scan.sum_of_squares = nonfinite == 0 ? sum_of_squares : 0;
    scan.largest_finite = largest_finite;
    scan.nonfinite = nonfinite;
    scan.first_nonfinite = first_nonfinite;
    return scan;
  }
};

/// Elements of block `block` of an array that need not be whole blocks.
TUTTI_HD constexpr std::size_t elements_in_block(std::size_t elements, std::size_t block)
{
  const std::size_t left = elements - block * block_elements;
  return left < block_elements ? left : block_elements;
}

// Every body has: `Lane`, a lane's result with `combine`; `run`, what one lane does in a block;
// `finish`, which gets the combined result.

struct SumBody {
  using Lane = LaneScan;
  SumBlocks work;

  TUTTI_HD Lane run(std::size_t block, int lane) const
  {
    Lane seen;
    const SumBlock one = work.block[block];
    const void* const* sources = work.sources + one.first_source;
    float* sum = work.sum + block * block_elements;
    for (std::size_t i = static_cast<std::size_t>(lane); i < block_elements; i += lanes) {
      float value = one.sources == 0 ? 0.0f : load_element(sources[0], one.precision, i);
      for (std::uint32_t s = 1; s < one.sources; ++s)
        value = add(value, load_element(sources[s], one.precision, i));
      sum[i] = value;
      seen.see(value, static_cast<std::uint32_t>(i));
      seen.see_square(value);
    }
    return seen;
  }
  TUTTI_HD void finish(std::size_t block, const Lane& seen) const
  {
    work.scan[block] = seen.result();
  }
};

/// The update of one element: reads old values, holds new ones.
struct AdamElement {
  float gradient, master, exp_avg, exp_avg_sq, ema;
};

/// Moments and master values after one update (formula in block.hpp). `l2 == 0` leaves its term
/// out, so that a nonfinite master value is not taken for a nonfinite gradient.
TUTTI_HD inline void adam_element(AdamElement& x, const AdamScalars& s, bool with_ema)
{
  x.gradient = multiply(s.grad_factor, x.gradient);
  if (s.l2 != 0) x.gradient = add(x.gradient, multiply(s.l2, x.master));
  x.exp_avg = add(multiply(s.beta1, x.exp_avg), multiply(s.one_minus_beta1, x.gradient));
  x.exp_avg_sq = add(multiply(s.beta2, x.exp_avg_sq),
                     multiply(s.one_minus_beta2, multiply(x.gradient, x.gradient)));
  const float denominator = add(multiply(square_root(x.exp_avg_sq), s.inv_sqrt_bias2), s.epsilon);
  x.master =
      subtract(multiply(s.decay, x.master), multiply(s.step_size, divide(x.exp_avg, denominator)));
  if (with_ema)
    x.ema = add(multiply(s.ema_decay, x.ema), multiply(s.one_minus_ema_decay, x.master));
}

/// What the update saw in one lane, or in a whole block.
struct LaneAdam {
  std::uint32_t nonfinite = 0;
  std::uint32_t first = ~0u;
  AdamArray array = AdamArray::unscaled_gradient;

  /// `keep` blocks have no gradient; `weights` are the stored bits.
  TUTTI_HD void see(const AdamElement& x, std::uint32_t weights, const AdamScalars& s,
                    bool with_ema, std::uint32_t index)
  {
    AdamArray found;
    if (!s.keep && !is_finite(x.gradient))
      found = AdamArray::unscaled_gradient;
    else if (!is_finite(x.exp_avg))
      found = AdamArray::exp_avg;
    else if (!is_finite(x.exp_avg_sq))
      found = AdamArray::exp_avg_sq;
    else if (!is_finite(x.master))
      found = AdamArray::master;
    else if (!is_finite_stored(weights, s.weights))
      found = AdamArray::weights;
    else if (with_ema && !is_finite(x.ema))
      found = AdamArray::ema;
    else
      return;
    ++nonfinite;
    if (index < first) {
      first = index;
      array = found;
    }
  }
  TUTTI_HD void combine(const LaneAdam& other)
  {
    nonfinite += other.nonfinite;
    if (other.first < first) {
      first = other.first;
      array = other.array;
    }
  }
};

struct AdamBody {
  using Lane = LaneAdam;
  AdamBlocks work;

  TUTTI_HD Lane run(std::size_t block, int lane) const
  {
    Lane seen;
    const AdamScalars s = work.scalars[work.block[block].scalars];
    void* weights = work.block[block].weights;
    const bool with_ema = work.new_ema != nullptr;
    for (std::size_t i = static_cast<std::size_t>(lane); i < block_elements; i += lanes) {
      const std::size_t at = block * block_elements + i;
      AdamElement x{0, work.master[at], work.exp_avg[at], work.exp_avg_sq[at],
                    with_ema ? work.ema[at] : 0};
      if (!s.keep) {
        x.gradient = work.gradient[at];
        adam_element(x, s, with_ema);
      }
      work.new_master[at] = x.master;
      work.new_exp_avg[at] = x.exp_avg;
      work.new_exp_avg_sq[at] = x.exp_avg_sq;
      if (with_ema) work.new_ema[at] = x.ema;
      const std::uint32_t stored = store_element(weights, s.weights, i, x.master);
      seen.see(x, stored, s, with_ema, static_cast<std::uint32_t>(i));
    }
    return seen;
  }
  TUTTI_HD void finish(std::size_t block, const Lane& seen) const
  {
    AdamScan scan;
    scan.nonfinite = seen.nonfinite;
    scan.first = seen.first;
    scan.array = seen.array;
    work.scan[block] = scan;
  }
};

/// Accumulates (with a sum) or only scans (without) any number of elements.
struct AccumulateBody {
  using Lane = LaneScan;
  float* sum;
  const void* gradient;
  Precision precision;
  std::size_t elements;
  bool first;
  BlockScan* scan;

  TUTTI_HD Lane run(std::size_t block, int lane) const
  {
    Lane seen;
    const std::size_t count = elements_in_block(elements, block);
    for (std::size_t i = static_cast<std::size_t>(lane); i < count; i += lanes) {
      const std::size_t at = block * block_elements + i;
      const float value = load_element(gradient, precision, at);
      if (sum != nullptr) sum[at] = add(first ? 0.0f : sum[at], value);
      seen.see(value, static_cast<std::uint32_t>(i));
    }
    return seen;
  }
  TUTTI_HD void finish(std::size_t block, const Lane& seen) const { scan[block] = seen.result(); }
};

struct Nothing {
  TUTTI_HD void combine(const Nothing&) {}
};

struct ConvertBody {
  using Lane = Nothing;
  void* to;
  Precision precision;
  const float* values;
  std::size_t elements;

  TUTTI_HD Lane run(std::size_t block, int lane) const
  {
    const std::size_t count = elements_in_block(elements, block);
    for (std::size_t i = static_cast<std::size_t>(lane); i < count; i += lanes) {
      const std::size_t at = block * block_elements + i;
      store_element(to, precision, at, values[at]);
    }
    return {};
  }
  TUTTI_HD void finish(std::size_t, const Lane&) const {}
};

/// The digest's share of one element: its index in the block and its stored bits.
TUTTI_HD constexpr std::uint64_t digest_element(std::uint64_t index, std::uint32_t bits)
{
  return mix64(index, bits);
}

struct LaneDigest {
  std::uint64_t sum = 0;
  TUTTI_HD void combine(const LaneDigest& other) { sum += other.sum; }
};

struct DigestBody {
  using Lane = LaneDigest;
  std::uint64_t* digest;
  const void* values;
  Precision precision;

  TUTTI_HD Lane run(std::size_t block, int lane) const
  {
    Lane seen;
    for (std::size_t i = static_cast<std::size_t>(lane); i < block_elements; i += lanes) {
      const std::size_t at = block * block_elements + i;
      const std::uint32_t bits = precision == Precision::fp32
                                     ? static_cast<const std::uint32_t*>(values)[at]
                                     : static_cast<const std::uint16_t*>(values)[at];
      seen.sum += digest_element(i, bits);
    }
    return seen;
  }
  TUTTI_HD void finish(std::size_t block, const Lane& seen) const { digest[block] = seen.sum; }
};

/// Adds the scan of block `block` to that of the blocks before it: indices become those of the
/// whole array and, like the counts, saturate.
inline void append_scan(BlockScan& whole, const BlockScan& part, std::size_t block)
{
  if (part.largest_finite > whole.largest_finite) whole.largest_finite = part.largest_finite;
  if (part.nonfinite == 0) return;
  if (whole.nonfinite == 0) {
    const std::uint64_t index = std::uint64_t{block} * block_elements + part.first_nonfinite;
    whole.first_nonfinite = index < ~0u - 1 ? static_cast<std::uint32_t>(index) : ~0u - 1;
  }
  const std::uint64_t count = std::uint64_t{whole.nonfinite} + part.nonfinite;
  whole.nonfinite = count < ~0u ? static_cast<std::uint32_t>(count) : ~0u;
}

}  // namespace tutti::detail
