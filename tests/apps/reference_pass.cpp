// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The fp64 reference agrees with the model within the bounds that it states, and a kernel that is
// wrong is named, whichever it is.
#include "reference_pass.hpp"

#include <cmath>

#include "catch.hpp"
#include "rounding.hpp"
#include "tutti/digest.hpp"

using namespace tutti;
using namespace tutti::apps;

namespace {

constexpr std::size_t samples = 24;

MlpShape shape_of(Precision precision)
{
  return {.inputs = 40, .hidden = 17, .classes = 10, .precision = precision};
}

struct Images {
  std::vector<std::uint8_t> pixels = std::vector<std::uint8_t>(samples * 40);
  Mlp::Batch batch;
  Images()
  {
    for (std::size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = static_cast<std::uint8_t>(mix64(7, i));
    for (std::size_t i = 0; i < samples; ++i) {
      batch.images.push_back(pixels.data() + 40 * i);
      batch.labels.push_back(static_cast<std::uint8_t>(mix64(8, i) % 10));
    }
  }
};

/// The host's products, with one element of the product number `broken` (from 0) off by a little.
class BrokenGemm : public Gemm {
 public:
  explicit BrokenGemm(int broken) : broken_(broken) {}
  void multiply(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                const float* a, const float* b, float* c) noexcept override
  {
    host_->multiply(transpose_a, transpose_b, m, n, k, a, b, c);
    if (calls_++ != broken_) return;
    std::size_t largest = 0;
    for (std::size_t i = 0; i < m * n; ++i)
      if (std::abs(c[i]) > std::abs(c[largest])) largest = i;
    c[largest] *= 1.02f;
  }

 private:
  std::unique_ptr<Gemm> host_ = make_gemm(DeviceKind::host);
  int broken_, calls_ = 0;
};

std::unique_ptr<Mlp> make_model(const MlpShape& shape, Gemm& gemm)
{
  auto mlp = std::make_unique<Mlp>(shape, MPI_COMM_SELF, samples, gemm);
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    const std::vector<float> values = Mlp::initial_values(shape, 3, p);
    std::vector<std::byte> stored(values.size() * bytes_of(shape.precision));
    from_fp32(stored.data(), shape.precision, values.data(), values.size());
    mlp->set_weights(p, stored.data());
  }
  return mlp;
}

constexpr Precision precisions[] = {Precision::fp16, Precision::bf16, Precision::fp32};

}  // namespace

TEST_CASE("Each kernel of the model is within its bound of the fp64 reference")
{
  const Images images;
  for (const Precision precision : precisions)
    for (const double scale : {1.0 / samples, 64.0, 1e9}) {  // the last one overflows fp16
      const MlpShape shape = shape_of(precision);
      const std::unique_ptr<Gemm> gemm = make_gemm(DeviceKind::host);
      const std::unique_ptr<Mlp> mlp = make_model(shape, *gemm);
      mlp->loss_and_gradients(images.batch, scale);
      for (const KernelError& kernel : kernel_errors(*mlp, shape, images.batch, scale)) {
        INFO(kernel.kernel << ", " << name_of(precision) << ", scale " << scale);
        CHECK(kernel.error <= 1);
        const bool overflows = precision == Precision::fp16 && scale == 1e9;
        if (!overflows) CHECK(kernel.compared == kernel.elements);
        if (overflows && kernel.kernel == "hidden.bias gradient")
          CHECK(kernel.compared < kernel.elements);  // its inputs are not finite
        CHECK(kernel.elements > 0);
      }
    }
}

TEST_CASE("The whole pass in fp64 has the model's loss and gradients")
{
  const Images images;
  const MlpShape shape = shape_of(Precision::fp32);
  const std::unique_ptr<Gemm> gemm = make_gemm(DeviceKind::host);
  const std::unique_ptr<Mlp> mlp = make_model(shape, *gemm);
  const double loss = mlp->loss_and_gradients(images.batch, 1);
  const ReferencePass pass = reference_pass(*mlp, shape, images.batch);
  CHECK(std::abs(loss - pass.loss) < 1e-4 * pass.loss);
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    const auto* gradient = static_cast<const float*>(mlp->gradient(p));
    double worst = 0;
    for (std::size_t i = 0; i < pass.gradient[p].size(); ++i)
      worst = std::max(worst, std::abs(pass.gradient[p][i] - static_cast<double>(gradient[i])));
    CHECK(worst < 1e-4);
  }
}

TEST_CASE("A product that is 2 percent off in one element is the kernel that is named")
{
  const Images images;
  const char* const order[] = {"hidden product", "logits", "output.weight gradient",
                               "hidden gradient", "hidden.weight gradient"};
  for (const Precision precision : precisions)
    for (int broken = 0; broken < 5; ++broken) {
      const MlpShape shape = shape_of(precision);
      BrokenGemm gemm(broken);
      const std::unique_ptr<Mlp> mlp = make_model(shape, gemm);
      mlp->loss_and_gradients(images.batch, 1);
      for (const KernelError& kernel : kernel_errors(*mlp, shape, images.batch, 1)) {
        INFO(kernel.kernel << ", " << name_of(precision) << ", product " << broken);
        CHECK((kernel.error > 1) == (kernel.kernel == order[broken]));
      }
    }
}
