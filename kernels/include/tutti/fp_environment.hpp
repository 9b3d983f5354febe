// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The floating-point environment of a kernel: round to nearest, subnormals kept, no traps. A host
// code linked with -ffast-math switches FTZ/DAZ on for its process, and bits must not depend on
// that.
#pragma once

#if !defined(__x86_64__)
#include <cfenv>
#endif

namespace tutti::detail {

/// Sets the kernel environment of the calling thread and restores the caller's, sticky flags
/// included. Constructor and destructor are calls into another file on purpose: memory accesses
/// cannot move across them, and with them the arithmetic between a kernel's loads and its stores.
class FloatingPointGuard {
 public:
  FloatingPointGuard() noexcept;
  ~FloatingPointGuard();
  FloatingPointGuard(const FloatingPointGuard&) = delete;
  FloatingPointGuard& operator=(const FloatingPointGuard&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace tutti::detail
