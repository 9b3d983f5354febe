// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The scalar conversions of tutti/half.hpp, against the compiler's own _Float16 and, for bf16,
// against a nearest-even search in fp64. Every stored value, and every rounding boundary with its
// neighbours.
#include "tutti/half.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"

using namespace tutti;

namespace {

static_assert(half_from_float(1.0f).bits == 0x3c00, "usable in constant expressions");
static_assert(bits_of(float_from_half(Half{1})) == 0x33800000, "smallest subnormal is 2^-24");
static_assert(bfloat16_from_float(1.0f).bits == 0x3f80);

/// fp16 as the compiler rounds it. NaNs are compared by class only.
std::uint16_t compiler_half(float value)
{
  return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(value));
}

/// bf16 by looking at both neighbours: the closer one, on a tie the even one.
std::uint16_t searched_bfloat16(float value)
{
  const std::uint32_t bits = bits_of(value);
  const auto below = static_cast<std::uint16_t>(bits >> 16);  // towards zero
  const auto above = static_cast<std::uint16_t>(below + 1);
  const auto as_double = [](std::uint16_t b) {
    // The value after the largest finite one counts as 2^128 for rounding.
    if ((b & 0x7fff) == 0x7f80) return (b & 0x8000) != 0 ? -0x1p128 : 0x1p128;
    return static_cast<double>(float_from_bits(static_cast<std::uint32_t>(b) << 16));
  };
  if (std::isinf(value)) return below;
  const double to_below = std::fabs(static_cast<double>(value) - as_double(below));
  const double to_above = std::fabs(static_cast<double>(value) - as_double(above));
  if (to_below != to_above) return to_below < to_above ? below : above;
  return (below & 1) == 0 ? below : above;
}

void check_both(float value)
{
  CAPTURE(bits_of(value));
  const std::uint16_t half = half_from_float(value).bits;
  const std::uint16_t bfloat16 = bfloat16_from_float(value).bits;
  if (std::isnan(value)) {
    if ((half & 0x7e00) != 0x7e00 || (bfloat16 & 0x7fc0) != 0x7fc0) FAIL("not a quiet NaN");
    if ((half >> 15) != (bits_of(value) >> 31)) FAIL("fp16 NaN lost its sign");
    if ((bfloat16 >> 15) != (bits_of(value) >> 31)) FAIL("bf16 NaN lost its sign");
    return;
  }
  if (half != compiler_half(value)) FAIL("fp16 " << half << " instead of " << compiler_half(value));
  if (bfloat16 != searched_bfloat16(value))
    FAIL("bf16 " << bfloat16 << " instead of " << searched_bfloat16(value));
}

}  // namespace

TEST_CASE("every fp16 value converts as the compiler converts it, and back to itself", "[half]")
{
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    CAPTURE(b);
    const auto stored = static_cast<std::uint16_t>(b);
    const float value = float_from_half(Half{stored});
    const auto expected = static_cast<float>(__builtin_bit_cast(_Float16, stored));
    if ((stored & 0x7c00) == 0x7c00 && (stored & 0x3ff) != 0) {
      if (!std::isnan(value)) FAIL("NaN became a number");
      if (half_from_float(value).bits != (stored | 0x200)) FAIL("payload changed");
    } else {
      if (bits_of(value) != bits_of(expected)) FAIL(value << " instead of " << expected);
      if (half_from_float(value).bits != stored) FAIL("did not come back");
    }
  }
  SUCCEED();
}

TEST_CASE("every bf16 value is the upper half of its fp32, and comes back", "[half]")
{
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    CAPTURE(b);
    const auto stored = static_cast<std::uint16_t>(b);
    const float value = float_from_bfloat16(BFloat16{stored});
    const bool nan = (stored & 0x7f80) == 0x7f80 && (stored & 0x7f) != 0;
    if (nan != std::isnan(value)) FAIL("class changed");
    if (bfloat16_from_float(value).bits != (nan ? (stored | 0x40) : stored))
      FAIL("did not come back");
  }
  SUCCEED();
}

TEST_CASE("fp32 rounds to nearest even at every boundary of fp16 and bf16", "[half]")
{
  for (std::uint32_t b = 0; b < 0x7c00; ++b) {
    // Between two neighbours of fp16 lies one fp32 value: the boundary.
    const float low = float_from_half(Half{static_cast<std::uint16_t>(b)});
    const float high =
        b + 1 == 0x7c00 ? 65536.0f : float_from_half(Half{static_cast<std::uint16_t>(b + 1)});
    const float boundary = low + (high - low) / 2;
    for (float value : {low, boundary, high})
      for (int off = -2; off <= 2; ++off) {
        const std::uint32_t bits = bits_of(value) + static_cast<std::uint32_t>(off);
        check_both(float_from_bits(bits & 0x7fffffffu));
        check_both(float_from_bits(bits | 0x80000000u));
      }
  }
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      check_both(float_from_bits((upper << 16) | lower));
  SUCCEED();
}

TEST_CASE("a sample of all fp32 values rounds to nearest even", "[half]")
{
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 1021)
    check_both(float_from_bits(static_cast<std::uint32_t>(bits)));
  SUCCEED();
}

TEST_CASE("stored finiteness follows the format", "[half]")
{
  CHECK(is_finite_stored(0x7bff, Precision::fp16));
  CHECK_FALSE(is_finite_stored(0x7c00, Precision::fp16));
  CHECK_FALSE(is_finite_stored(0xfe01, Precision::fp16));
  CHECK(is_finite_stored(0x7c00, Precision::bf16));
  CHECK_FALSE(is_finite_stored(0x7f80, Precision::bf16));
  CHECK(is_finite_stored(0x7f7fffff, Precision::fp32));
  CHECK_FALSE(is_finite_stored(0xff800000, Precision::fp32));
}
