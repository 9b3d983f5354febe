// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The super-accumulator: order independence to the bit, its extremes, and its one rounding, against
// an arithmetic on strings of bits that shares nothing with it.
#include "tutti/exact_sum.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"
#include "tutti/error.hpp"

using namespace tutti;

namespace {

/// Non-negative big number: bit k of the vector weighs 2^(k - 400). Slow and obvious.
class BitString {
 public:
  void add(double value)
  {
    int exponent;
    auto significand = static_cast<std::uint64_t>(std::ldexp(std::frexp(value, &exponent), 53));
    std::size_t at = static_cast<std::size_t>(exponent - 53 + 400);
    for (; significand != 0; significand >>= 1, ++at)
      if ((significand & 1) != 0) add_bit(at);
  }
  double rounded() const
  {
    std::size_t top = bits_.size();
    while (top > 0 && !bits_[top - 1]) --top;
    if (top == 0) return 0;
    double value = 0;
    const std::size_t low = top > 53 ? top - 53 : 0;
    for (std::size_t k = top; k-- > low;) value = 2 * value + (bits_[k] ? 1 : 0);
    if (low > 0 && bits_[low - 1]) {
      bool more = false;
      for (std::size_t k = 0; k + 1 < low; ++k) more = more || bits_[k];
      if (more || bits_[low]) value += 1;
    }
    return std::ldexp(value, static_cast<int>(low) - 400);
  }

 private:
  void add_bit(std::size_t at)
  {
    for (; bits_[at]; ++at) bits_[at] = false;
    bits_[at] = true;
  }
  std::vector<bool> bits_ = std::vector<bool>(1000);
};

double random_square(std::mt19937_64& random)
{
  float value;
  do value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  while (!std::isfinite(value));
  return static_cast<double>(value) * value;
}

}  // namespace

TEST_CASE("an exact sum does not depend on order or grouping", "[exact_sum]")
{
  std::mt19937_64 random(7);
  std::vector<double> values;
  for (int k = 0; k < 3000; ++k) values.push_back(random_square(random));
  ExactSum first;
  BitString reference;
  for (double value : values) {
    first.add(value);
    reference.add(value);
  }
  first.normalize();
  CHECK(first.value() == reference.rounded());
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(values.begin(), values.end(), random);
    ExactSum parts[5], whole;
    for (double value : values) parts[random() % 5].add(value);
    for (ExactSum& part : parts) {
      if (trial % 2 == 0) part.normalize();
      whole.add(part);
    }
    whole.normalize();
    CHECK(whole == first);
    CHECK(whole.value() == first.value());
  }
}

TEST_CASE("the value of an exact sum is rounded once, to nearest even", "[exact_sum]")
{
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 5000; ++trial) {
    ExactSum sum;
    BitString reference;
    const int count = 1 + static_cast<int>(random() % 6);
    const int base = -240 + static_cast<int>(random() % 480);
    for (int k = 0; k < count; ++k) {
      // Significands with long runs of zeros or ones, close together: ties and near ties are
      // common.
      const std::uint64_t bits = (random() & random() & random()) >> 11;
      const double value = std::ldexp(static_cast<double>(bits | 1), base - 53 * (k % 3) + k / 3);
      if (value < 0x1p-245) continue;  // its last bit would be below 2^-298
      sum.add(value);
      reference.add(value);
    }
    REQUIRE(sum.value() == reference.rounded());
  }
}

TEST_CASE("ties of an exact sum go to even, and any bit beyond breaks them", "[exact_sum]")
{
  ExactSum tie;
  tie.add(1.0);
  tie.add(0x1p-53);
  CHECK(tie.value() == 1.0);
  tie.add(0x1p-298);
  CHECK(tie.value() == 1.0 + 0x1p-52);
  ExactSum odd;
  odd.add(1.0 + 0x1p-52);
  odd.add(0x1p-53);
  CHECK(odd.value() == 1.0 + 0x1p-51);
}

TEST_CASE("an exact sum holds the whole range of squares of fp32 at once", "[exact_sum]")
{
  const double tiny = 0x1p-298;  // the square of the smallest subnormal
  const double huge = static_cast<double>(std::numeric_limits<float>::max()) *
                      std::numeric_limits<float>::max() * 4096;
  ExactSum sum;
  CHECK(sum.value() == 0.0);
  CHECK_FALSE(std::signbit(sum.value()));
  sum.add(tiny);
  CHECK(sum.value() == tiny);
  sum.add(huge);
  CHECK(sum.value() == huge);
  sum.add(-huge);
  CHECK(sum.value() == tiny);
  sum.add(-tiny);
  sum.add(-tiny);
  CHECK(sum.value() == -tiny);
  sum.add(tiny);
  sum.normalize();
  CHECK(sum == ExactSum{});
}

TEST_CASE("millions of adds and sums over ranks keep every bit", "[exact_sum]")
{
  // All limbs of the three touched ones are filled by each add, so a carry that got lost would
  // show.
  const double value = std::ldexp(static_cast<double>((std::uint64_t{1} << 53) - 1), 100);
  ExactSum sum;
  for (int k = 0; k < (1 << 22); ++k) {
    sum.add(value);
    if (k % 100000 == 0) sum.normalize();
  }
  CHECK(sum.value() == value * 0x1p22);
  sum.normalize();
  ExactSum doubled = sum;
  for (int k = 0; k < 20; ++k) {
    const ExactSum same = doubled;
    doubled.add(same);
    doubled.normalize();
  }
  CHECK(doubled.value() == value * 0x1p42);
  ExactSum negative;
  for (int k = 0; k < 1000; ++k) negative.add(-value);
  negative.normalize();
  for (std::size_t k = 0; k + 1 < negative.limb.size(); ++k) {
    CHECK(negative.limb[k] >= 0);
    CHECK(negative.limb[k] < (std::int64_t{1} << 32));
  }
  ExactSum thousand;
  for (int k = 0; k < 1000; ++k) thousand.add(value);
  CHECK(negative.value() == -thousand.value());
}

TEST_CASE("an exact sum cuts what lies below its last bit and refuses what it cannot hold",
          "[exact_sum]")
{
  ExactSum sum;
  sum.add(0x1p-299);
  sum.add(0x1p-1074);
  CHECK(sum == ExactSum{});
  sum.add(0x1.8p-298);
  CHECK(sum.value() == 0x1p-298);
  CHECK_THROWS_AS(sum.add(0x1p341), InvalidArgument);
  CHECK_THROWS_AS(sum.add(std::numeric_limits<double>::infinity()), InvalidArgument);
  CHECK_THROWS_AS(sum.add(std::numeric_limits<double>::quiet_NaN()), InvalidArgument);
  CHECK(sum.value() == 0x1p-298);
  sum.add(0x1.fffffffffffffp340);
  CHECK(sum.value() == 0x1.fffffffffffffp340);
}
