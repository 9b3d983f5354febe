// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The unit of everything: a block of 4096 consecutive elements, what a pass over one reports, and
// the argument records of the block kernels. Plain data only; who runs the kernels is device.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/precision.hpp"

namespace tutti {

/// Elements of a block: the unit of ownership, norm, digest and checkpoint integrity.
inline constexpr std::size_t block_elements = 4096;

/// Blocks that hold `elements` elements.
constexpr std::size_t blocks_of(std::size_t elements)
{
  return (elements + block_elements - 1) / block_elements;
}

/// What a pass saw in the values that it read or wrote.
struct BlockScan {
  /// Sum of squares in fp64: 32 lanes (element i in lane i mod 32, in order), then a halving tree
  /// (lane j += lane j+16, 8, 4, 2, 1). 0 if anything is nonfinite.
  double sum_of_squares = 0;
  /// Bits of the largest finite magnitude as fp32 (non-negative, so ordered as an integer).
  std::uint32_t largest_finite = 0;
  /// Number of elements that are inf or NaN.
  std::uint32_t nonfinite = 0;
  /// Index of the first of them; ~0u if none.
  std::uint32_t first_nonfinite = ~0u;
  std::uint32_t reserved = 0;
};

/// One owned block of `Device::sum_blocks`: which contributions are added, and their format.
struct SumBlock {
  std::uint32_t first_source = 0;  ///< index of the first contribution in the table of sources
  std::uint32_t sources = 0;       ///< number of contributions, added in this order in fp32
  Precision precision = Precision::fp32;
};

/// sum[i] = source_0[i] + source_1[i] + ... in fp32, in table order, and the scan of the sum. A
/// nonfinite contribution always leaves a nonfinite sum (inf and NaN absorb), so scanning the sum
/// sees it. Bytes a parameter: sources x bytes_of(precision) read, 4 written.
struct SumBlocks {
  std::size_t blocks = 0;
  const SumBlock* block = nullptr;  ///< [blocks]
  const void* const* sources =
      nullptr;           ///< each points to block_elements elements, any alignment of an element
  float* sum = nullptr;  ///< [blocks x block_elements], 64-byte aligned
  BlockScan* scan = nullptr;  ///< [blocks]
  bool stream = false;        ///< non-temporal stores of the sums (where there are any)
};

/// The numbers of one parameter in one Adam update, all computed in fp64 and rounded once to fp32.
/// Formula (Kingma & Ba 2015; Loshchilov & Hutter 2019 for the decoupled decay), with g the
/// handed-in sum:
///   g  = grad_factor * g;  g += l2 * p                    (the second only if l2 is not 0)
///   m' = beta1 * m + one_minus_beta1 * g
///   v' = beta2 * v + one_minus_beta2 * (g * g)
///   p' = decay * p - step_size * (m' / (sqrt(v') * inv_sqrt_bias2 + epsilon))
///   ema' = ema_decay * ema + one_minus_ema_decay * p'
/// in exactly this order and association, fp32, without contraction.
struct AdamScalars {
  float grad_factor = 1;  ///< unscale x clip x B / N
  float beta1 = 0.9f, one_minus_beta1 = 0.1f;
  float beta2 = 0.999f, one_minus_beta2 = 0.001f;
  float l2 = 0;              ///< coupled weight decay (Adam)
  float decay = 1;           ///< 1 - lr x weight_decay (AdamW)
  float step_size = 0;       ///< lr / (1 - beta1^t)
  float inv_sqrt_bias2 = 1;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon = 1e-8f;
  float ema_decay = 0, one_minus_ema_decay = 1;
  Precision weights = Precision::fp32;  ///< format of the model values
  bool keep = false;  ///< no gradient on any rank: the new arrays get the old values, bit for bit
};

/// One owned block of `Device::adam_blocks`.
struct AdamBlock {
  void* weights = nullptr;    ///< where the new model values go (block_elements of scalars.weights)
  std::uint32_t scalars = 0;  ///< index into AdamBlocks::scalars
};

/// Which array of the update held the first nonfinite value.
enum class AdamArray : std::uint32_t {
  unscaled_gradient,
  exp_avg,
  exp_avg_sq,
  master,
  weights,
  ema
};

/// What the update's scan of its own results saw in one block. `unscaled_gradient` is checked after
/// grad_factor and l2, before the moments.
struct AdamScan {
  std::uint32_t nonfinite = 0;  ///< elements with a nonfinite value in any written array
  std::uint32_t first = ~0u;    ///< index of the first such element
  AdamArray array =
      AdamArray::unscaled_gradient;  ///< the first array in the enum's order, at that element
  std::uint32_t reserved = 0;
};

/// Fused unscale x clip x Adam(W). Reads the old arrays, writes the new ones beside them (staged)
/// or over them (new_x == x: in place). Staged results of `stream` calls go out with non-temporal
/// stores. Bytes a parameter: 16 read, 12 + bytes_of(weights) written (4 + 4 more with EMA).
struct AdamBlocks {
  std::size_t blocks = 0;
  const AdamBlock* block = nullptr;  ///< [blocks]
  const AdamScalars* scalars = nullptr;
  const float* gradient = nullptr;  ///< all [blocks x block_elements], 64-byte aligned
  const float *master = nullptr, *exp_avg = nullptr, *exp_avg_sq = nullptr, *ema = nullptr;
  float *new_master = nullptr, *new_exp_avg = nullptr, *new_exp_avg_sq = nullptr,
        *new_ema = nullptr;
  AdamScan* scan = nullptr;  ///< [blocks]
  bool stream = false;       ///< non-temporal stores (ignored in place and where there are none)
};

}  // namespace tutti
