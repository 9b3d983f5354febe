// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The production host device: cuts a call into one contiguous range a Kokkos thread, and runs the
// SIMD body of the chosen instruction set on each.
#include <Kokkos_Core.hpp>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "block_bodies.hpp"
#include "simd.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"
#include "tutti/fp_environment.hpp"

namespace tutti {
namespace {

using HostSpace = Kokkos::DefaultHostExecutionSpace;

struct Range {
  std::size_t begin, end;
};

/// Blocks of part `part` of `parts` nearly equal contiguous parts.
Range part_of(std::size_t blocks, std::size_t part, std::size_t parts)
{
  const std::size_t share = blocks / parts, more = blocks % parts;
  const std::size_t begin = part * share + std::min(part, more);
  return {begin, begin + share + (part < more ? 1 : 0)};
}

/// Calls body(part, range) for every part, each on a thread of the host space in the kernels'
/// floating-point environment.
template <class Body>
void for_each_range(const char* label, std::size_t blocks, std::size_t parts, const Body& body)
{
  const auto run = [&](std::size_t part) {
    const detail::FloatingPointGuard guard;
    body(part, part_of(blocks, part, parts));
  };
  if (parts == 1) return run(0);
  try {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<HostSpace>(0, parts),
                         [&](const std::size_t part) { run(part); });
    HostSpace().fence();
  } catch (const std::exception& error) {
    throw DeviceError(std::string(label) + " failed on the host (" + error.what() + ")");
  }
}

class HostDevice final : public Device {
 public:
  explicit HostDevice(const detail::SimdKernels& kernels)
      : kernels_(kernels),
        threads_(Kokkos::is_initialized()
                     ? static_cast<std::size_t>(std::max(1, HostSpace().concurrency()))
                     : 1),
        seen_(threads_)
  {
  }

  DeviceKind kind() const override { return DeviceKind::host; }
  std::string name() const override { return std::string("host (") + kernels_.display + ")"; }

  void* allocate(std::size_t bytes) override
  {
    // Large arrays are streamed through: on huge pages, where the system has them, with fewer TLB
    // misses. A kernel walks through up to nine of them side by side; bases that were all equal
    // modulo a huge page may compete for the same memory banks, so each starts at another
    // offset.
    constexpr std::size_t huge_page = std::size_t{2} << 20;
    const bool large = bytes >= 2 * huge_page;
    const std::size_t alignment = large ? huge_page : 64;
    const std::size_t offset = large ? (1 + arrays_++ % 9 * 33) * std::size_t{4096} : 64;
    if (bytes > SIZE_MAX - alignment - offset) throw std::bad_alloc();
    const std::size_t size = (bytes + offset + alignment - 1) / alignment * alignment;
    void* const base = std::aligned_alloc(alignment, size);
    if (base == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (large) madvise(base, size, MADV_HUGEPAGE);  // advice: refusal is no error
#endif
    // The threads that will use the pages touch them first.
    constexpr std::size_t page = 4096;
    const std::size_t pages = (size + page - 1) / page;
    for_each_range("tutti::allocate", pages, parts_for(pages), [&](std::size_t, Range range) {
      const std::size_t end = std::min(size, range.end * page);
      std::memset(static_cast<char*>(base) + range.begin * page, 0, end - range.begin * page);
    });
    void* const pointer = static_cast<char*>(base) + offset;
    static_cast<void**>(pointer)[-1] = base;
    return pointer;
  }
  void deallocate(void* pointer) noexcept override
  {
    if (pointer != nullptr) std::free(static_cast<void**>(pointer)[-1]);
  }
  void copy(void* to, const void* from, std::size_t bytes) override
  {
    if (bytes != 0) std::memmove(to, from, bytes);
  }

  BlockScan accumulate(float* sum, const void* gradient, Precision precision, std::size_t elements,
                       bool first) override
  {
    return scan_ranges("tutti::accumulate", elements, [&](std::size_t start, std::size_t count) {
      return kernels_.accumulate(sum + start, at(gradient, precision, start), precision, count,
                                 first);
    });
  }
  BlockScan scan(const void* values, Precision precision, std::size_t elements) override
  {
    return scan_ranges("tutti::scan", elements, [&](std::size_t start, std::size_t count) {
      return kernels_.scan(at(values, precision, start), precision, count);
    });
  }
  void sum_blocks(const SumBlocks& work) override
  {
    for_each_range("tutti::sum_blocks", work.blocks, parts_for(work.blocks),
                   [&](std::size_t, Range r) { kernels_.sum_blocks(work, r.begin, r.end); });
  }
  void adam_blocks(const AdamBlocks& work) override
  {
    for_each_range("tutti::adam_blocks", work.blocks, parts_for(work.blocks),
                   [&](std::size_t, Range r) { kernels_.adam_blocks(work, r.begin, r.end); });
  }
  void convert(void* to, Precision precision, const float* values, std::size_t elements) override
  {
    const std::size_t blocks = blocks_of(elements);
    for_each_range("tutti::convert", blocks, parts_for(blocks), [&](std::size_t, Range r) {
      const std::size_t start = r.begin * block_elements;
      const std::size_t end = std::min(elements, r.end * block_elements);
      if (start < end)
        kernels_.convert(static_cast<char*>(to) + start * bytes_of(precision), precision,
                         values + start, end - start);
    });
  }
  void digest_blocks(std::uint64_t* digest, const void* values, Precision precision,
                     std::size_t blocks) override
  {
    for_each_range("tutti::digest_blocks", blocks, parts_for(blocks), [&](std::size_t, Range r) {
      kernels_.digest_blocks(digest + r.begin, at(values, precision, r.begin * block_elements),
                             precision, r.end - r.begin);
    });
  }

 private:
  static const void* at(const void* values, Precision precision, std::size_t index)
  {
    return static_cast<const char*>(values) + index * bytes_of(precision);
  }

  std::size_t parts_for(std::size_t blocks) const
  {
    return std::clamp(blocks, std::size_t{1}, threads_);
  }

  /// Runs `body(first element, count)` on ranges of whole blocks and joins what they saw, in order.
  template <class Body>
  BlockScan scan_ranges(const char* label, std::size_t elements, const Body& body)
  {
    BlockScan whole;
    if (elements == 0) return whole;
    const std::size_t blocks = blocks_of(elements), parts = parts_for(blocks);
    for_each_range(label, blocks, parts, [&](std::size_t part, Range r) {
      const std::size_t start = r.begin * block_elements;
      seen_[part] = body(start, std::min(elements, r.end * block_elements) - start);
    });
    for (std::size_t part = 0; part < parts; ++part)
      detail::append_scan(whole, seen_[part], part_of(blocks, part, parts).begin);
    return whole;
  }

  const detail::SimdKernels& kernels_;
  std::size_t threads_;
  std::vector<BlockScan> seen_;  ///< by the threads of the scan that is made
  std::size_t arrays_ = 0;       ///< large arrays handed out so far
};

}  // namespace

std::unique_ptr<Device> make_host_device()
{
  const char* limit = std::getenv("TUTTI_SIMD");
  return make_host_device(limit == nullptr ? "" : limit);
}

std::unique_ptr<Device> make_host_device(std::string_view instruction_set)
{
  return std::make_unique<HostDevice>(detail::simd_kernels_within(instruction_set));
}

std::vector<std::string> host_instruction_sets()
{
  std::vector<std::string> names;
  for (const detail::SimdKernels& table : detail::simd_kernels()) names.emplace_back(table.name);
  return names;
}

}  // namespace tutti
