// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The plain-pointer interface of the SIMD kernels: one table of functions an instruction set. No
// Kokkos and no Highway in here. The functions run on the calling thread, in the floating-point
// environment that they find; whoever calls them sets it (fp_environment.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/block.hpp"

namespace tutti::detail {

struct SimdKernels {
  const char* name = "";     ///< what TUTTI_SIMD takes
  const char* display = "";  ///< for logs

  /// Blocks [begin, end) of the work; non-temporal stores are complete on return.
  void (*sum_blocks)(const SumBlocks& work, std::size_t begin, std::size_t end) = nullptr;
  void (*adam_blocks)(const AdamBlocks& work, std::size_t begin, std::size_t end) = nullptr;
  /// As Device::accumulate and Device::scan.
  BlockScan (*accumulate)(float* sum, const void* gradient, Precision precision,
                          std::size_t elements, bool first) = nullptr;
  BlockScan (*scan)(const void* values, Precision precision, std::size_t elements) = nullptr;
  void (*convert)(void* to, Precision precision, const float* values,
                  std::size_t elements) = nullptr;
  void (*digest_blocks)(std::uint64_t* digest, const void* values, Precision precision,
                        std::size_t blocks) = nullptr;
  /// to = a * factor + b over `count` elements (a multiple of 64, 64-byte aligned), non-temporal: a
  /// bound for streaming kernels.
  void (*triad)(float* to, const float* a, const float* b, float factor,
                std::size_t count) = nullptr;
  /// values *= factor, `count` as in `triad`.
  void (*scale)(float* values, float factor, std::size_t count) = nullptr;
};

/// The tables that this machine can run, best first. At least one.
const std::vector<SimdKernels>& simd_kernels();

/// The best table that is not above `limit` ("" for no limit); throws ConfigError for an unknown
/// name.
const SimdKernels& simd_kernels_within(std::string_view limit);

}  // namespace tutti::detail
