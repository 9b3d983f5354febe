// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one place that knows which HDF5 is there: 1.10 to 2.x. Calls with versions are made by their
// versioned names (H5Dcreate2), so the default API mapping does not matter.
#pragma once

#include <hdf5.h>

#ifndef H5_HAVE_PARALLEL
#error "tutti needs an HDF5 that was built with MPI"
#endif

namespace tutti::detail {

/// All readers from 1.10 on open files within these bounds; `latest` of 2.x is closed to 1.10.
#if H5_VERSION_GE(1, 10, 2)
inline constexpr H5F_libver_t file_version = H5F_LIBVER_V110;
#else
inline constexpr H5F_libver_t file_version = H5F_LIBVER_LATEST;  // is 1.10
#endif

}  // namespace tutti::detail
