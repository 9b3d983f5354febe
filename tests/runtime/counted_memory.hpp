// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts what this program allocates by operator new and, when told to, lets it run out of memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti::test {

extern std::atomic<std::uint64_t> allocations;
/// 0: none fails; n: the n-th allocation from now on throws std::bad_alloc.
extern std::atomic<std::uint64_t> failing_allocation;
/// Whether all that follow it fail too.
extern std::atomic<bool> memory_stays_lost;

}  // namespace tutti::test
