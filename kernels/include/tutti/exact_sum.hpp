// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A fixed-point super-accumulator: sums of fp64 numbers that are exact, hence independent of order
// and of how they are spread over ranks. It travels in the ballot as integers.
#pragma once

#include <array>
#include <cstdint>

namespace tutti {

/// Exact signed sum of finite doubles whose bits lie in 2^-298 .. 2^341 (bits below 2^-298 are an
/// InvalidArgument-free truncation: sums of squares of fp32 have none). 20 limbs of 32 bits, value
/// = sum limb[k] x 2^(32 k - 298). Up to 2^30 adds between two `normalize` calls.
struct ExactSum {
  std::array<std::int64_t, 20> limb{};

  void add(double value);  ///< value must be finite
  void add(const ExactSum&
               other);   ///< both normalized, or few; limb by limb, so an integer MPI_SUM does it
  void normalize();      ///< carries up; limbs 0..18 in [0, 2^32), the top keeps the sign
  double value() const;  ///< one rounding to nearest even; +-inf past the range of fp64
  bool operator==(const ExactSum&) const = default;
};

}  // namespace tutti
