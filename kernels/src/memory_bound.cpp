// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The three loops that bound a streaming kernel, and what one thread reaches with them.
#include "tutti/memory_bound.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "simd.hpp"
#include "tutti/device.hpp"

namespace tutti {
namespace {

/// Best GB/s of one kind of sweep, repeated for `seconds` after one that is not counted.
double best_rate(MemorySweeps& sweeps, MemorySweeps::Kind kind, double seconds)
{
  using Clock = std::chrono::steady_clock;
  sweeps.sweep(kind);
  double best = 0;
  const auto begin = Clock::now();
  auto last = begin;
  do {
    const double bytes = sweeps.sweep(kind);
    const auto now = Clock::now();
    const double taken = std::chrono::duration<double>(now - last).count();
    if (taken > 0) best = std::max(best, bytes / taken * 1e-9);
    last = now;
  } while (std::chrono::duration<double>(last - begin).count() < seconds);
  return best;
}

}  // namespace

MemorySweeps::MemorySweeps(std::size_t bytes_per_array)
    : bytes_((std::max(bytes_per_array, std::size_t{1}) + 255) / 256 * 256)
{
  const std::shared_ptr<Device> device = make_host_device("");
  for (Array* array : {&a_, &b_, &c_})
    *array = Array(static_cast<float*>(device->allocate(bytes_)),
                   [device](float* p) { device->deallocate(p); });
}

double MemorySweeps::sweep(Kind kind)
{
  const detail::SimdKernels& kernels = detail::simd_kernels().front();
  const std::size_t count = bytes_ / sizeof(float);
  const auto size = static_cast<double>(bytes_);
  switch (kind) {
    case Kind::copy:
      std::memcpy(a_.get(), b_.get(), bytes_);
      return 2 * size;
    case Kind::multiply:
      kernels.scale(a_.get(), 1.0f, count);
      return 2 * size;
    case Kind::triad:
      kernels.triad(a_.get(), b_.get(), c_.get(), 1.0f, count);
      return 3 * size;
  }
  return 0;
}

double MemoryBound::best() const { return std::max({copy, multiply, triad}); }

MemoryBound measure_memory_bounds(std::size_t bytes_per_array, double seconds)
{
  MemorySweeps sweeps(bytes_per_array);
  return {best_rate(sweeps, MemorySweeps::Kind::copy, seconds / 3),
          best_rate(sweeps, MemorySweeps::Kind::multiply, seconds / 3),
          best_rate(sweeps, MemorySweeps::Kind::triad, seconds / 3)};
}

}  // namespace tutti
