// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The super-accumulator: a double's significand is cut at 32-bit limb borders and added as
// integers; only value() rounds.
#include "tutti/exact_sum.hpp"

#include <bit>
#include <cmath>

#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr int lowest_bit = -298;
constexpr std::int64_t limb_mask = 0xffffffff;

}  // namespace

void ExactSum::add(double value)
{
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  if (biased >= 1023 + 341)
    throw InvalidArgument(
        "an exact sum takes finite values below 2^341 (this one is larger, inf or NaN); leave "
        "nonfinite blocks out");
  std::uint64_t significand = bits & ((std::uint64_t{1} << 52) - 1);
  if (biased != 0) significand |= std::uint64_t{1} << 52;
  int position = (biased == 0 ? 1 : biased) - 1075 - lowest_bit;
  if (position < 0) {  // bits below the lowest limb are cut off
    significand = position > -64 ? significand >> -position : 0;
    position = 0;
  }
  const std::size_t first = static_cast<std::size_t>(position) / 32;
  const unsigned shift = static_cast<unsigned>(position) % 32;
  // significand << shift has up to 84 bits: the lowest 32 and the others are computed apart.
  const std::int64_t low = static_cast<std::int64_t>((significand << shift) & limb_mask);
  const std::uint64_t rest = significand >> (32 - shift);  // shift < 32, so this is defined
  const std::int64_t part[3] = {low, static_cast<std::int64_t>(rest & limb_mask),
                                static_cast<std::int64_t>(rest >> 32)};
  const std::int64_t sign = (bits >> 63) != 0 ? -1 : 1;
  for (std::size_t k = 0; k < 3; ++k)
    if (part[k] != 0) limb[first + k] += sign * part[k];  // below 2^341 no part lies past the top
}

void ExactSum::add(const ExactSum& other)
{
  for (std::size_t k = 0; k < limb.size(); ++k) limb[k] += other.limb[k];
}

void ExactSum::normalize()
{
  for (std::size_t k = 0; k + 1 < limb.size(); ++k) {
    limb[k + 1] += limb[k] >> 32;  // arithmetic: floor, so the remainder is not negative
    limb[k] &= limb_mask;
  }
}

double ExactSum::value() const
{
  ExactSum sum = *this;
  sum.normalize();
  const bool negative = sum.limb.back() < 0;
  if (negative) {
    for (std::int64_t& part : sum.limb) part = -part;
    sum.normalize();
  }
  // Bits of the magnitude, most significant first: the top limb may hold 63 bits, the others 32.
  std::size_t top = sum.limb.size();
  while (top > 0 && sum.limb[top - 1] == 0) --top;
  if (top == 0) return 0.0;
  --top;
  // 128 bits from the top limb down hold its 1..63 bits and at least 64 below them.
  unsigned __int128 window = static_cast<std::uint64_t>(sum.limb[top]);
  std::size_t next = top;
  int scale = 32 * static_cast<int>(top) + lowest_bit;  // weight of the window's last bit
  for (int k = 0; k < 2 && next > 0; ++k) {
    window = (window << 32) | static_cast<std::uint64_t>(sum.limb[--next]);
    scale -= 32;
  }
  bool sticky = false;
  while (next > 0 && !sticky) sticky = sum.limb[--next] != 0;
  const std::uint64_t high = static_cast<std::uint64_t>(window >> 64);
  const int width = high != 0 ? 128 - std::countl_zero(high)
                              : 64 - std::countl_zero(static_cast<std::uint64_t>(window));
  std::uint64_t kept = static_cast<std::uint64_t>(window);
  if (width > 53) {
    const int dropped = width - 53;
    const unsigned __int128 half_unit = static_cast<unsigned __int128>(1) << (dropped - 1);
    const unsigned __int128 rest = window & ((half_unit << 1) - 1);
    kept = static_cast<std::uint64_t>(window >> dropped);
    if (rest > half_unit || (rest == half_unit && (sticky || (kept & 1) != 0))) ++kept;
    scale += dropped;
  }
  const double magnitude = std::ldexp(static_cast<double>(kept), scale);  // exact: at most 2^53
  return negative ? -magnitude : magnitude;
}

}  // namespace tutti
