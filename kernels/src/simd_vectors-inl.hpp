// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Vectors of fp32 for the SIMD files: loads and stores in each precision, and the sum of squares in
// the 32-lane order. Included once for every target, hence the toggled guard.

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "tutti/half.hpp"

#if defined(TUTTI_SIMD_VECTORS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_SIMD_VECTORS_INL_HPP
#undef TUTTI_SIMD_VECTORS_INL_HPP
#else
#define TUTTI_SIMD_VECTORS_INL_HPP
#endif

// Highway's own software conversions flush or misround subnormals, so it is asked only where it
// emits the hardware instructions; elsewhere the vector code below is used.
#undef TUTTI_HARDWARE_F16
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define TUTTI_HARDWARE_F16 1
#else
#define TUTTI_HARDWARE_F16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti::detail::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;  // as many lanes as F32, half the bytes
using Floats = hn::Vec<F32>;
using Ints = hn::Vec<I32>;

inline constexpr std::size_t vector_lanes = hn::MaxLanes(F32());
static_assert(32 % vector_lanes == 0, "a vector is a whole part of the 32 lanes");

/// Bits without the sign, as signed integers: ordered like the magnitudes, NaN above inf above all.
HWY_INLINE Ints magnitude_bits(Floats x)
{
  const I32 di;
  return hn::And(hn::BitCast(di, x), hn::Set(di, 0x7fffffff));
}

HWY_INLINE Floats float_from_half_bits(hn::Vec<U16> bits)
{
#if TUTTI_HARDWARE_F16
  const hn::Rebind<hwy::float16_t, F32> dh;
  return hn::PromoteTo(F32(), hn::BitCast(dh, bits));
#else
  const F32 df;
  const I32 di;
  const auto wide = hn::BitCast(di, hn::PromoteTo(U32(), bits));
  const auto magnitude = hn::And(wide, hn::Set(di, 0x7fff));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(di, 0x8000)));
  // Normal values get the difference of the exponent biases, inf and NaN get it twice. Subnormals
  // are integers in units of 2^-24.
  const auto rebias = hn::Set(di, 112 << 23);
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const auto special = hn::Gt(magnitude, hn::Set(di, 0x7bff));
  const auto finite_or_not = hn::Add(normal, hn::IfThenElseZero(special, rebias));
  const auto subnormal =
      hn::BitCast(di, hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-24f)));
  const auto result =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400)), subnormal, finite_or_not);
  const auto quiet =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(di, 0x7c00)), hn::Set(di, 0x400000));
  return hn::BitCast(df, hn::Or(hn::Or(result, quiet), sign));
#endif
}

HWY_INLINE hn::Vec<U16> half_bits_from_float(Floats x)
{
#if TUTTI_HARDWARE_F16
  const hn::Rebind<hwy::float16_t, F32> dh;
  return hn::BitCast(U16(), hn::DemoteTo(dh, x));
#else
  const F32 df;
  const I32 di;
  const auto magnitude = magnitude_bits(x);
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(di, x)), hn::Set(di, 0x8000));
  // Normal: as in half_from_float; past the largest value the rebiased bits lie above those of inf.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rounded =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(di, 0xfff - (112 << 23))), odd));
  const auto normal = hn::Min(rounded, hn::Set(di, 0x7c00));
  // Subnormal: added to 0.5, whose unit is 2^-24, the value is rounded by the addition itself.
  const auto half = hn::Set(df, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(di, half));
  const auto number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), subnormal, normal);
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 0x3ff));
  const auto nan = hn::Or(payload, hn::Set(di, 0x7e00));
  const auto result =
      hn::Or(hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), nan, number), sign);
  return hn::TruncateTo(U16(), hn::BitCast(U32(), result));
#endif
}

HWY_INLINE Floats float_from_bfloat16_bits(hn::Vec<U16> bits)
{
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

HWY_INLINE hn::Vec<U16> bfloat16_bits_from_float(Floats x)
{
  const I32 di;
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude_bits(x), hn::Set(di, 0x7f800000)));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
#if HWY_TARGET == HWY_AVX2
  // Packing with saturation is one instruction less than truncation there, and equal below 2^16.
  return hn::DemoteTo(U16(), hn::BitCast(di, upper));
#else
  return hn::TruncateTo(U16(), upper);
#endif
}

/// Element type in memory.
template <Precision precision>
using Stored = std::conditional_t<precision == Precision::fp32, float, std::uint16_t>;

/// The vector of fp32 values at any element alignment.
template <Precision precision>
HWY_INLINE Floats load(const Stored<precision>* from)
{
  if constexpr (precision == Precision::fp16)
    return float_from_half_bits(hn::LoadU(U16(), from));
  else if constexpr (precision == Precision::bf16)
    return float_from_bfloat16_bits(hn::LoadU(U16(), from));
  else
    return hn::LoadU(F32(), from);
}

/// Rounds to `precision` and stores at any element alignment.
template <Precision precision>
HWY_INLINE void store(Floats x, Stored<precision>* to)
{
  if constexpr (precision == Precision::fp16)
    hn::StoreU(half_bits_from_float(x), U16(), to);
  else if constexpr (precision == Precision::bf16)
    hn::StoreU(bfloat16_bits_from_float(x), U16(), to);
  else
    hn::StoreU(x, F32(), to);
}

/// Stores whole aligned vectors of fp32, past the cache if `stream`.
template <bool stream>
HWY_INLINE void store_aligned(Floats x, float* to)
{
  if constexpr (stream)
    hn::Stream(x, F32(), to);
  else
    hn::Store(x, F32(), to);
}

/// Sum of squares in fp64: 32 lanes, element i in lane i mod 32. The square of an fp32 value is
/// exact in fp64, so a fused multiply-add gives the same bits as two operations.
class SquareLanes {
 public:
  HWY_INLINE SquareLanes()
  {
    for (std::size_t k = 0; k < count; ++k) sum_[k] = hn::Zero(F64());
  }
  /// `part` is the position of the vector within its 32 elements, in vectors.
  HWY_INLINE void add(Floats x, std::size_t part)
  {
#if HWY_TARGET == HWY_SCALAR
    const auto wide = hn::PromoteTo(F64(), x);
    sum_[part] = hn::Add(sum_[part], hn::Mul(wide, wide));
#else
    const hn::Half<F32> dh;
    const auto low = hn::PromoteTo(F64(), hn::LowerHalf(dh, x));
    const auto high = hn::PromoteTo(F64(), hn::UpperHalf(dh, x));
    sum_[2 * part] = hn::MulAdd(low, low, sum_[2 * part]);
    sum_[2 * part + 1] = hn::MulAdd(high, high, sum_[2 * part + 1]);
#endif
  }
  /// The halving tree of BlockScan.
  HWY_INLINE double total() const
  {
    alignas(64) double lane[32];
    for (std::size_t k = 0; k < count; ++k) hn::Store(sum_[k], F64(), lane + k * lanes_of_f64);
    for (std::size_t half = 16; half > 0; half /= 2)
      for (std::size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
    return lane[0];
  }

 private:
#if HWY_TARGET == HWY_SCALAR
  using F64 = hn::Rebind<double, F32>;
#else
  using F64 = hn::Rebind<double, hn::Half<F32> >;
#endif
  static constexpr std::size_t lanes_of_f64 = hn::MaxLanes(F64());
  static constexpr std::size_t count = 32 / lanes_of_f64;
  hn::Vec<F64> sum_[count];
};

/// The largest of the lanes.
HWY_INLINE std::int32_t largest_lane(Ints x)
{
  alignas(64) std::int32_t lane[vector_lanes];
  hn::Store(x, I32(), lane);
  std::int32_t largest = lane[0];
  for (std::size_t k = 1; k < vector_lanes; ++k)
    if (lane[k] > largest) largest = lane[k];
  return largest;
}

}  // namespace tutti::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
