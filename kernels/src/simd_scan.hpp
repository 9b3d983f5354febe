// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The slow half of every scan: once a SIMD pass knows that a block holds something nonfinite, the
// block is looked at again, one element after the other. Also the tails that do not fill a vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/block.hpp"

namespace tutti::detail {

/// Count, first index and largest finite magnitude of at most block_elements elements; no squares.
BlockScan scan_elements(const void* values, Precision precision, std::size_t elements);

}  // namespace tutti::detail
