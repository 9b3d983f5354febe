// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a test tells the stand-in for NCCL.
#pragma once

#include <cstddef>
#include <functional>

namespace tutti::test {

struct NcclDouble {
  /// Between memory of the device and of the host.
  std::function<void(void* to, const void* from, std::size_t bytes)> copy;
  /// The next group fails on this rank; the others then hear of a remote error, as with NCCL.
  bool fails = false;
  std::size_t groups = 0, operations = 0;  ///< so far
};
NcclDouble& nccl_double();

}  // namespace tutti::test
