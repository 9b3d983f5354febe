// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gemm.hpp"

#include <cblas.h>
#include <sys/mman.h>

#include <new>
#include <vector>

#include "tutti/error.hpp"

namespace tutti::apps {
namespace {

class BlasGemm final : public Gemm {
 public:
  BlasGemm()
  {
    // OpenBLAS gets its work buffer with the first product and asks for ever where it gets none: so
    // here it is seen whether there is room, and the first product is made. One rank that does not
    // come back from a product would stop all.
    constexpr std::size_t buffer = std::size_t{128} << 20;  // bytes, the largest of its builds
    void* const room =
        ::mmap(nullptr, buffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) throw std::bad_alloc();
    ::munmap(room, buffer);
    constexpr std::size_t n = 128;  // smaller ones may do without it
    std::vector<float> values(n * n), product(n * n);
    multiply(false, false, n, n, n, values.data(), values.data(), product.data());
  }
  void multiply(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                const float* a, const float* b, float* c) noexcept override
  {
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(k), 1.0f, a, static_cast<int>(transpose_a ? m : k), b,
                static_cast<int>(transpose_b ? k : n), 0.0f, c, static_cast<int>(n));
  }
};

}  // namespace

std::unique_ptr<Gemm> make_gemm(DeviceKind kind)
{
  if (kind == DeviceKind::host) return std::make_unique<BlasGemm>();
#ifdef TUTTI_ENABLE_CUDA
  return detail::make_cublas_gemm();
#else
  throw DeviceError("cuBLAS cannot be used (built without CUDA); use device host");
#endif
}

}  // namespace tutti::apps
