// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What this rank's memory can do: the bound that kernels and whole steps are compared with.
#pragma once

#include <cstddef>

namespace tutti {

/// GB/s (10^9 bytes a second) of three loops on the calling thread, each the best of several sweeps
/// over arrays larger than the caches. Only bytes that the program reads and writes are counted: a
/// plain store's hidden read of the line that it overwrites is not.
struct MemoryBound {
  double copy = 0;      ///< memcpy: 1 read, 1 written
  double multiply = 0;  ///< in place: 1 read, 1 written, no hidden read
  double triad = 0;     ///< a = b * f + c with non-temporal stores: 2 read, 1 written
  double best() const;
};

/// Measures for about `seconds` in all with arrays of `bytes_per_array` bytes (rounded up to 256).
/// Host only, not collective; allocates three arrays and throws std::bad_alloc if it cannot.
MemoryBound measure_memory_bounds(std::size_t bytes_per_array, double seconds);

/// The best of the three.
double measure_memory_bound(std::size_t bytes_per_array, double seconds);

}  // namespace tutti
