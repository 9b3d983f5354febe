// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// SIMD body of Device::adam_blocks: one sweep reads the old arrays and the gradient, and writes the
// new arrays and the model values, past the cache where that was asked for.
#include "simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_adam.cpp"
#include <hwy/foreach_target.h>  // this file again, once for every other target

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>

#include "block_bodies.hpp"
#include "simd_vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {

/// Smallest fp32 magnitude bits that do not round to a finite value of the precision.
template <Precision precision>
inline constexpr std::int32_t overflow_bits = precision == Precision::fp16   ? 0x477ff000
                                              : precision == Precision::bf16 ? 0x7f7f8000
                                                                             : 0x7f800000;

/// The rare case: something in this vector of new values is nonfinite; say where. Not inlined, to
/// stay out of the hot loop's registers, and by value: what a reference goes to would be stored in
/// each round of that loop.
template <Precision precision>
HWY_NOINLINE void see_vector(LaneAdam& seen, Floats new_gradient, Floats new_master,
                             Floats new_exp_avg, Floats new_exp_avg_sq, Floats new_ema,
                             const AdamScalars& s, bool with_ema, std::size_t index)
{
  const F32 df;
  alignas(64) float gradient[vector_lanes], master[vector_lanes], exp_avg[vector_lanes],
      exp_avg_sq[vector_lanes], ema[vector_lanes];
  hn::Store(new_gradient, df, gradient);
  hn::Store(new_master, df, master);
  hn::Store(new_exp_avg, df, exp_avg);
  hn::Store(new_exp_avg_sq, df, exp_avg_sq);
  hn::Store(new_ema, df, ema);
  for (std::size_t k = 0; k < vector_lanes; ++k) {
    Stored<precision> stored;
    const std::uint32_t bits = store_element(&stored, precision, 0, master[k]);
    seen.see(AdamElement{gradient[k], master[k], exp_avg[k], exp_avg_sq[k], ema[k]}, bits, s,
             with_ema, static_cast<std::uint32_t>(index + k));
  }
}

/// Elements whose results are held back when streaming, so that every non-temporal store belongs to
/// a run that fills whole cache lines: interleaved stores to five arrays would leave the
/// processor's write-combining buffers half full. 32 is one line of 16-bit weights.
inline constexpr std::size_t tile_elements = 32;
/// A vector of fp32 is such a run by itself.
inline constexpr bool vector_is_line = vector_lanes * sizeof(float) == 64;

/// Sends `bytes` (whole 64-byte lines, both sides aligned) past the cache.
template <std::size_t bytes>
HWY_INLINE void stream_lines(const void* from, void* to)
{
  const hn::ScalableTag<std::uint32_t> d;
  constexpr std::size_t step = hn::MaxLanes(d);
  const auto* in = static_cast<const std::uint32_t*>(from);
  auto* out = static_cast<std::uint32_t*>(to);
  for (std::size_t i = 0; i < bytes / 4; i += step) hn::Stream(hn::Load(d, in + i), d, out + i);
}

template <Precision precision, bool with_ema, bool stream>
LaneAdam adam_block(const AdamBlocks& work, std::size_t block, const AdamScalars& s)
{
  using T = Stored<precision>;
  const F32 df;
  const I32 di;
  const std::size_t start = block * block_elements;
  const float* gradient = work.gradient + start;
  const float* master = work.master + start;
  const float* exp_avg = work.exp_avg + start;
  const float* exp_avg_sq = work.exp_avg_sq + start;
  const float* ema = with_ema ? work.ema + start : nullptr;
  float* new_master = work.new_master + start;
  float* new_exp_avg = work.new_exp_avg + start;
  float* new_exp_avg_sq = work.new_exp_avg_sq + start;
  float* new_ema = with_ema ? work.new_ema + start : nullptr;
  T* weights = static_cast<T*>(work.block[block].weights);

  const auto grad_factor = hn::Set(df, s.grad_factor);
  const auto beta1 = hn::Set(df, s.beta1), one_minus_beta1 = hn::Set(df, s.one_minus_beta1);
  const auto beta2 = hn::Set(df, s.beta2), one_minus_beta2 = hn::Set(df, s.one_minus_beta2);
  const auto l2 = hn::Set(df, s.l2), decay = hn::Set(df, s.decay);
  const auto step_size = hn::Set(df, s.step_size);
  const auto inv_sqrt_bias2 = hn::Set(df, s.inv_sqrt_bias2), epsilon = hn::Set(df, s.epsilon);
  const auto ema_decay = hn::Set(df, s.ema_decay);
  const auto one_minus_ema_decay = hn::Set(df, s.one_minus_ema_decay);
  const auto largest_number = hn::Set(di, 0x7f7fffff);
  const auto largest_weight = hn::Set(di, overflow_bits<precision> - 1);
  const bool coupled = s.l2 != 0;

  alignas(64) float tile_master[tile_elements], tile_exp_avg[tile_elements];
  alignas(64) float tile_exp_avg_sq[tile_elements], tile_ema[tile_elements];
  alignas(64) T tile_weights[tile_elements];

  LaneAdam seen;
  for (std::size_t i = 0; i < block_elements; i += vector_lanes) {
    const auto p = hn::Load(df, master + i);
    auto g = hn::Mul(grad_factor, hn::Load(df, gradient + i));
    if (coupled) g = hn::Add(g, hn::Mul(l2, p));
    const auto m = hn::Add(hn::Mul(beta1, hn::Load(df, exp_avg + i)), hn::Mul(one_minus_beta1, g));
    const auto v = hn::Add(hn::Mul(beta2, hn::Load(df, exp_avg_sq + i)),
                           hn::Mul(one_minus_beta2, hn::Mul(g, g)));
    const auto denominator = hn::Add(hn::Mul(hn::Sqrt(v), inv_sqrt_bias2), epsilon);
    const auto w = hn::Sub(hn::Mul(decay, p), hn::Mul(step_size, hn::Div(m, denominator)));
    auto e = hn::Zero(df);
    if constexpr (with_ema)
      e = hn::Add(hn::Mul(ema_decay, hn::Load(df, ema + i)), hn::Mul(one_minus_ema_decay, w));

    const std::size_t k = i % tile_elements;
    if constexpr (stream && vector_is_line) {
      hn::Stream(w, df, new_master + i);
      hn::Stream(m, df, new_exp_avg + i);
      hn::Stream(v, df, new_exp_avg_sq + i);
      if constexpr (with_ema) hn::Stream(e, df, new_ema + i);
    } else {
      hn::Store(w, df, stream ? tile_master + k : new_master + i);
      hn::Store(m, df, stream ? tile_exp_avg + k : new_exp_avg + i);
      hn::Store(v, df, stream ? tile_exp_avg_sq + k : new_exp_avg_sq + i);
      if constexpr (with_ema) hn::Store(e, df, stream ? tile_ema + k : new_ema + i);
    }
    store<precision>(w, stream ? tile_weights + k : weights + i);
    if (stream && k + vector_lanes == tile_elements) {
      const std::size_t first = i + vector_lanes - tile_elements;
      if constexpr (!vector_is_line) {
        stream_lines<sizeof tile_master>(tile_master, new_master + first);
        stream_lines<sizeof tile_exp_avg>(tile_exp_avg, new_exp_avg + first);
        stream_lines<sizeof tile_exp_avg_sq>(tile_exp_avg_sq, new_exp_avg_sq + first);
        if constexpr (with_ema) stream_lines<sizeof tile_ema>(tile_ema, new_ema + first);
      }
      stream_lines<sizeof tile_weights>(tile_weights, weights + first);
    }

    // A nonfinite gradient makes exp_avg_sq nonfinite, a nonfinite exp_avg does so to master, and a
    // nonfinite master to the weights: looking at exp_avg_sq, weights and ema misses nothing.
    auto bad = hn::Or(hn::Gt(magnitude_bits(v), largest_number),
                      hn::Gt(magnitude_bits(w), largest_weight));
    if constexpr (with_ema) bad = hn::Or(bad, hn::Gt(magnitude_bits(e), largest_number));
    if (HWY_UNLIKELY(!hn::AllFalse(di, bad)))
      see_vector<precision>(seen, g, w, m, v, e, s, with_ema, i);
  }
  return seen;
}

template <Precision precision>
LaneAdam adam_block(const AdamBlocks& work, std::size_t block, const AdamScalars& s)
{
  const bool in_place = work.new_master == work.master;
  const bool aligned = reinterpret_cast<std::uintptr_t>(work.block[block].weights) % 64 == 0;
  const bool stream = work.stream && !in_place && aligned;
  if (work.new_ema != nullptr)
    return stream ? adam_block<precision, true, true>(work, block, s)
                  : adam_block<precision, true, false>(work, block, s);
  return stream ? adam_block<precision, false, true>(work, block, s)
                : adam_block<precision, false, false>(work, block, s);
}

LaneAdam adam_block(const AdamBlocks& work, std::size_t block)
{
  const AdamScalars& s = work.scalars[work.block[block].scalars];
  if (s.keep) {  // rare, and nothing is computed: the portable body, lane by lane
    LaneAdam seen;
    const AdamBody body{work};
    for (int lane = 0; lane < lanes; ++lane) seen.combine(body.run(block, lane));
    return seen;
  }
  switch (s.weights) {
    case Precision::fp16:
      return adam_block<Precision::fp16>(work, block, s);
    case Precision::bf16:
      return adam_block<Precision::bf16>(work, block, s);
    case Precision::fp32:
      break;
  }
  return adam_block<Precision::fp32>(work, block, s);
}

void adam_blocks(const AdamBlocks& work, std::size_t begin, std::size_t end)
{
  const AdamBody body{work};
  for (std::size_t block = begin; block < end; ++block) body.finish(block, adam_block(work, block));
  if (work.stream) hwy::FlushStream();
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tutti::detail {
void add_adam_kernels(SimdKernels& kernels, Target<HWY_TARGET>)
{
  kernels.adam_blocks = &HWY_NAMESPACE::adam_blocks;
}
}  // namespace tutti::detail
