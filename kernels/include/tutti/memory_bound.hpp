// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What this rank's memory can do: the bound that kernels and whole steps are compared with.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

namespace tutti {

/// The three loops that bound a streaming kernel, on the calling thread, over arrays of its own.
/// Only bytes that the program reads and writes are counted: a plain store's hidden read of the
/// line that it overwrites is not. Host only, not collective.
class MemorySweeps {
 public:
  enum class Kind {
    copy,      ///< memcpy: 1 read, 1 written
    multiply,  ///< in place: 1 read, 1 written, no hidden read
    triad      ///< a = b * f + c with non-temporal stores: 2 read, 1 written
  };
  static constexpr std::array kinds = {Kind::copy, Kind::multiply, Kind::triad};

  /// Allocates three arrays of `bytes_per_array` (rounded up to 256), which should be larger than
  /// the caches together; throws std::bad_alloc if it cannot.
  explicit MemorySweeps(std::size_t bytes_per_array);

  /// One loop over the arrays; returns the bytes that it read and wrote.
  double sweep(Kind kind);

 private:
  using Array = std::unique_ptr<float, std::function<void(float*)>>;
  std::size_t bytes_;
  Array a_, b_, c_;
};

/// GB/s (10^9 bytes a second) of the three loops, each the best of several.
struct MemoryBound {
  double copy = 0, multiply = 0, triad = 0;
  double best() const;
};

/// What the calling thread reaches while nobody else is busy: measures for about `seconds` in all.
/// Ranks that share a memory get more from this than they can have together; let them sweep at the
/// same time instead (`tutti bench step` does). Errors as those of MemorySweeps.
MemoryBound measure_memory_bounds(std::size_t bytes_per_array, double seconds);

}  // namespace tutti
