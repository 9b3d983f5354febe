// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Matrix products of the reference model, by the BLAS of the rank's device.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tutti/device.hpp"

namespace tutti::apps {

class Gemm {
 public:
  virtual ~Gemm() = default;
  /// c [m x n] = op(a) op(b); row-major fp32 in host memory, op transposes where asked to. Cannot
  /// throw, since it is called between collectives of a pass: after a failure c is NaN, and
  /// `failure` says why.
  virtual void multiply(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n,
                        std::size_t k, const float* a, const float* b, float* c) noexcept = 0;
  /// Why a product since the last call failed; empty if none did.
  virtual std::string take_failure() { return {}; }
};

/// OpenBLAS on the host, cuBLAS on a CUDA device. Throws DeviceError if the latter does not start
/// and std::bad_alloc where OpenBLAS would have no memory to work with.
std::unique_ptr<Gemm> make_gemm(DeviceKind kind);

namespace detail {
std::unique_ptr<Gemm> make_cublas_gemm();
}

}  // namespace tutti::apps
