// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Conversions between fp32 and the 16-bit storage formats, on bits and by integers only: exact
// whatever the rounding mode or the flush settings are, in constant expressions and in device code.
// Rounding is IEEE nearest even; subnormals are kept; a NaN stays a (quiet) NaN and keeps its sign.
#pragma once

#include <cstdint>

#include "tutti/annotations.hpp"
#include "tutti/precision.hpp"

namespace tutti {

/// A stored fp16 (IEEE binary16) value: bits, no arithmetic.
struct Half {
  std::uint16_t bits;
};
/// A stored bf16 value (the upper half of an fp32): bits, no arithmetic.
struct BFloat16 {
  std::uint16_t bits;
};

/// The bits of an fp32 value and back. The builtin behind std::bit_cast, usable in device code.
TUTTI_HD constexpr std::uint32_t bits_of(float value)
{
  return __builtin_bit_cast(std::uint32_t, value);
}
TUTTI_HD constexpr float float_from_bits(std::uint32_t bits)
{
  return __builtin_bit_cast(float, bits);
}

/// Neither inf nor NaN; decided on bits, so no floating-point setting can change the answer.
TUTTI_HD constexpr bool is_finite(float value)
{
  return (bits_of(value) & 0x7fffffffu) < 0x7f800000u;
}

/// fp32 rounded to fp16; magnitudes of 65520 and above become inf.
TUTTI_HD constexpr Half half_from_float(float value)
{
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // halfway between 65504 and 65536, and beyond
    result = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // at least 2^-14: normal in fp16
    // Rebias the exponent; add just under half a unit, and the last kept bit for ties to even.
    result = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // at least 2^-25, half of the smallest subnormal
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t kept = significand >> shift;
    const std::uint32_t rest = significand & ((1u << shift) - 1u);
    const std::uint32_t half_unit = 1u << (shift - 1u);
    result = kept + ((rest > half_unit || (rest == half_unit && (kept & 1u) != 0)) ? 1u : 0u);
  }
  return Half{static_cast<std::uint16_t>(sign | result)};
}

/// fp16 to fp32, always exact.
TUTTI_HD constexpr float float_from_half(Half value)
{
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7c00u) {
    result = 0x7fc00000u | (magnitude << 13);
  } else if (magnitude == 0x7c00u) {
    result = 0x7f800000u;
  } else if (magnitude >= 0x400u) {
    result = (magnitude << 13) + (112u << 23);
  } else if (magnitude != 0) {  // subnormal: bring its leading bit to position 10
    std::uint32_t shifted = magnitude, exponent = 113;
    for (std::uint32_t step = 8; step != 0; step >>= 1) {
      if (shifted < (0x800u >> step)) {
        shifted <<= step;
        exponent -= step;
      }
    }
    result = (exponent << 23) + ((shifted & 0x3ffu) << 13);
  }
  return float_from_bits(sign | result);
}

/// fp32 rounded to bf16; magnitudes of (2 - 2^-8) x 2^127 and above become inf.
TUTTI_HD constexpr BFloat16 bfloat16_from_float(float value)
{
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return BFloat16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return BFloat16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// bf16 to fp32, always exact (a signalling NaN keeps its bits).
TUTTI_HD constexpr float float_from_bfloat16(BFloat16 value)
{
  return float_from_bits(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Element `index` of an array stored in `precision`, as fp32.
TUTTI_HD inline float load_element(const void* values, Precision precision, std::size_t index)
{
  switch (precision) {
    case Precision::fp16:
      return float_from_half(Half{static_cast<const std::uint16_t*>(values)[index]});
    case Precision::bf16:
      return float_from_bfloat16(BFloat16{static_cast<const std::uint16_t*>(values)[index]});
    case Precision::fp32:
      break;
  }
  return static_cast<const float*>(values)[index];
}

/// Rounds `value` into element `index` of an array stored in `precision`, and returns the bits
/// stored.
TUTTI_HD inline std::uint32_t store_element(void* values, Precision precision, std::size_t index,
                                            float value)
{
  if (precision == Precision::fp32) {
    static_cast<float*>(values)[index] = value;
    return bits_of(value);
  }
  const std::uint16_t bits =
      precision == Precision::fp16 ? half_from_float(value).bits : bfloat16_from_float(value).bits;
  static_cast<std::uint16_t*>(values)[index] = bits;
  return bits;
}

/// Is the value that these bits store in `precision` neither inf nor NaN?
TUTTI_HD constexpr bool is_finite_stored(std::uint32_t bits, Precision precision)
{
  const std::uint32_t exponent = precision == Precision::fp16   ? 0x7c00u
                                 : precision == Precision::bf16 ? 0x7f80u
                                                                : 0x7f800000u;
  return (bits & exponent) != exponent;
}

}  // namespace tutti
