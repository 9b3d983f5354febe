// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Times the three loops that bound a streaming kernel.
#include "tutti/memory_bound.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "simd.hpp"
#include "tutti/device.hpp"

namespace tutti {
namespace {

/// Best GB/s of sweeps of `bytes` each, repeated for `seconds`, after one sweep that is not
/// counted.
template <class Sweep>
double best_rate(double bytes, double seconds, const Sweep& sweep)
{
  using Clock = std::chrono::steady_clock;
  sweep();
  double best = 0;
  const auto begin = Clock::now();
  auto last = begin;
  do {
    sweep();
    const auto now = Clock::now();
    const double taken = std::chrono::duration<double>(now - last).count();
    if (taken > 0) best = std::max(best, bytes / taken * 1e-9);
    last = now;
  } while (std::chrono::duration<double>(last - begin).count() < seconds);
  return best;
}

}  // namespace

double MemoryBound::best() const { return std::max({copy, multiply, triad}); }

MemoryBound measure_memory_bounds(std::size_t bytes_per_array, double seconds)
{
  const std::size_t bytes = (std::max(bytes_per_array, std::size_t{1}) + 255) / 256 * 256;
  const std::size_t count = bytes / sizeof(float);
  const auto device = make_host_device("");
  const auto allocate = [&] {
    const auto release = [&](float* p) { device->deallocate(p); };
    return std::unique_ptr<float, decltype(release)>(static_cast<float*>(device->allocate(bytes)),
                                                     release);
  };
  const auto a = allocate(), b = allocate(), c = allocate();
  const detail::SimdKernels& kernels = detail::simd_kernels().front();
  const double size = static_cast<double>(bytes);
  MemoryBound bound;
  bound.copy = best_rate(2 * size, seconds / 3, [&] { std::memcpy(a.get(), b.get(), bytes); });
  bound.multiply = best_rate(2 * size, seconds / 3, [&] { kernels.scale(a.get(), 1.0f, count); });
  bound.triad = best_rate(3 * size, seconds / 3,
                          [&] { kernels.triad(a.get(), b.get(), c.get(), 1.0f, count); });
  return bound;
}

double measure_memory_bound(std::size_t bytes_per_array, double seconds)
{
  return measure_memory_bounds(bytes_per_array, seconds).best();
}

}  // namespace tutti
