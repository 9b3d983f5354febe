// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The Device seam: where a rank's arrays live and its kernels run, chosen at run time. Nothing
// above this header names an execution space, an instruction set or CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/block.hpp"

namespace tutti {

enum class DeviceKind : std::uint8_t { host, cuda };

/// A place with memory and kernels. All pointers handed to its kernels, tables included, are to
/// memory that this device can read (`allocate`, or any host memory on the host). Calls return when
/// the work is complete. Not collective. Kernels throw `DeviceError` on device failure and nothing
/// else. Every host kernel runs with the floating-point environment set to nearest, no FTZ/DAZ, and
/// restores it.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// For logs: "host (AVX2)", "host (Kokkos Serial)", "cuda 0 (NVIDIA H200)".
  virtual std::string name() const = 0;

  /// Zeroed memory, 64-byte aligned, pages touched. Throws std::bad_alloc.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* pointer) noexcept = 0;
  /// Between any two of host memory and this device's memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  /// Makes host memory readable and writable by this device's kernels at its host address, until
  /// `unpin`; on the host nothing is to be done. `memory` is page-aligned and nobody else's pages
  /// are in it. Throws DeviceError.
  virtual void pin(void* /*memory*/, std::size_t /*bytes*/) {}
  virtual void unpin(void* /*memory*/) noexcept {}

  /// sum[i] = (first ? 0 : sum[i]) + gradient[i] in fp32 for `elements` elements, and the scan of
  /// `gradient` itself (not of the sum). `first` overwrites without reading. No sum of squares.
  virtual BlockScan accumulate(float* sum, const void* gradient, Precision precision,
                               std::size_t elements, bool first) = 0;
  /// Scan only; no sum of squares. Index of the first offender saturates at ~0u - 1.
  virtual BlockScan scan(const void* values, Precision precision, std::size_t elements) = 0;
  virtual void sum_blocks(const SumBlocks& work) = 0;
  virtual void adam_blocks(const AdamBlocks& work) = 0;
  /// to[i] = values[i] rounded to nearest even into `precision`.
  virtual void convert(void* to, Precision precision, const float* values,
                       std::size_t elements) = 0;
  /// A 64-bit digest for each block of model values: sum mod 2^64 of mix64(index in block, bits).
  virtual void digest_blocks(std::uint64_t* digest, const void* values, Precision precision,
                             std::size_t blocks) = 0;
};

/// The production host device: block bodies in SIMD, dispatched at run time to the best instruction
/// set (environment variable TUTTI_SIMD=baseline|avx2|avx512 limits it). Throws `ConfigError` for
/// another value.
std::unique_ptr<Device> make_host_device();
/// The same, limited by `instruction_set` ("" for the best) instead of the environment.
std::unique_ptr<Device> make_host_device(std::string_view instruction_set);
/// The portable Kokkos kernels on the host: the bit oracle. Throws `DeviceError` where Kokkos is
/// not running; a CUDA build does not start it without a GPU.
std::unique_ptr<Device> make_portable_host_device();
/// Portable Kokkos kernels on CUDA device `ordinal`; throws `DeviceError` if built without CUDA or
/// none is there.
std::unique_ptr<Device> make_cuda_device(int ordinal);
/// Number of usable CUDA devices (0 without CUDA).
int cuda_device_count();
/// Names of the instruction sets that this machine can run, best first; what TUTTI_SIMD takes.
std::vector<std::string> host_instruction_sets();

}  // namespace tutti
