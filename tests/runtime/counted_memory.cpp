// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "counted_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace tutti::test {

std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> failing_allocation{0};
std::atomic<bool> memory_stays_lost{false};

namespace {

void* checked(void* (*allocate)(std::size_t bytes, std::size_t alignment), std::size_t bytes,
              std::size_t alignment)
{
  ++allocations;
  const std::uint64_t countdown = failing_allocation;
  if (countdown != 0 && (countdown > 1 || !memory_stays_lost)) --failing_allocation;
  void* const memory = countdown == 1 ? nullptr : allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace tutti::test

void* operator new(std::size_t bytes)
{
  return tutti::test::checked(
      [](std::size_t size, std::size_t) { return std::malloc(std::max<std::size_t>(size, 1)); },
      bytes, 0);
}
// Of the C++ library's own, which a sanitizer has another of: what it gives comes back to the
// operator delete below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept
{
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t bytes, std::align_val_t alignment)
{
  return tutti::test::checked(
      [](std::size_t size, std::size_t unit) {
        return std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
      },
      bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
