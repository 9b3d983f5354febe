// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks for functions that run on hosts and on devices, so that headers without Kokkos can be used
// inside its kernels. No declarations live here.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TUTTI_HD __host__ __device__
#else
#define TUTTI_HD
#endif
