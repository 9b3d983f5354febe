// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// cuBLAS for operands in host memory: they are copied to buffers on the device and the product
// back.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "gemm.hpp"
#include "tutti/error.hpp"

namespace tutti::apps {
namespace {

void check(cudaError_t status, const char* call)
{
  if (status != cudaSuccess)
    throw DeviceError(fmt::format("{} failed ({})", call, cudaGetErrorString(status)));
}
void check(cublasStatus_t status, const char* call)
{
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(fmt::format("{} failed ({})", call, cublasGetStatusString(status)));
}

/// Device memory that grows and is kept.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  float* of(std::size_t elements)
  {
    if (elements > elements_) {
      check(cudaFree(data_), "cudaFree");
      data_ = nullptr;
      elements_ = 0;
      check(cudaMalloc(reinterpret_cast<void**>(&data_), elements * sizeof(float)), "cudaMalloc");
      elements_ = elements;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  std::size_t elements_ = 0;
};

class CublasGemm final : public Gemm {
 public:
  CublasGemm()
  {
    check(cublasCreate(&handle_), "cublasCreate");
    // fp32 as written: no TF32, and the same bits in every run on the same device.
    check(cublasSetMathMode(handle_, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
  }
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;
  ~CublasGemm() override { cublasDestroy(handle_); }

  void multiply(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                const float* a, const float* b, float* c) noexcept override
  {
    try {
      const std::size_t bytes = sizeof(float);
      float* const device_a = a_.of(m * k);
      float* const device_b = b_.of(k * n);
      float* const device_c = c_.of(m * n);
      check(cudaMemcpy(device_a, a, m * k * bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
      check(cudaMemcpy(device_b, b, k * n * bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
      // Row-major c = op(a) op(b) is column-major c' = op(b)' op(a)' of the same memory.
      const float one = 1, zero = 0;
      check(
          cublasSgemm(handle_, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(n),
                      static_cast<int>(m), static_cast<int>(k), &one, device_b,
                      static_cast<int>(transpose_b ? k : n), device_a,
                      static_cast<int>(transpose_a ? m : k), &zero, device_c, static_cast<int>(n)),
          "cublasSgemm");
      check(cudaMemcpy(c, device_c, m * n * bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    } catch (const std::exception& error) {
      std::fill_n(c, m * n, std::numeric_limits<float>::quiet_NaN());
      if (failure_.empty()) failure_ = error.what();
    }
  }
  std::string take_failure() override { return std::exchange(failure_, {}); }

 private:
  cublasHandle_t handle_ = nullptr;
  Buffer a_, b_, c_;
  std::string failure_;
};

}  // namespace

std::unique_ptr<Gemm> detail::make_cublas_gemm() { return std::make_unique<CublasGemm>(); }

}  // namespace tutti::apps
