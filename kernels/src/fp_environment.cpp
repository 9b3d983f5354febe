// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Setting and restoring the floating-point environment: the SSE control register on x86-64 (x87 is
// not used by the kernels), <cfenv> elsewhere.
#include "tutti/fp_environment.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::detail {

#if defined(__x86_64__)

FloatingPointGuard::FloatingPointGuard() noexcept : saved_(_mm_getcsr())
{
  _mm_setcsr(0x1f80);  // all exceptions masked, nearest, FTZ and DAZ off, flags clear
}
FloatingPointGuard::~FloatingPointGuard() { _mm_setcsr(saved_); }

#else

FloatingPointGuard::FloatingPointGuard() noexcept
{
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
}
FloatingPointGuard::~FloatingPointGuard() { std::fesetenv(&saved_); }

#endif

}  // namespace tutti::detail
