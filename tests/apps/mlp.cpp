// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The reference model against finite differences and against itself at other model-parallel
// degrees, and what it does with values that are not finite.
#include "mlp.hpp"

#include <cblas.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <new>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "rounding.hpp"
#include "tutti/digest.hpp"

using namespace tutti;
using namespace tutti::apps;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

constexpr std::size_t samples = 6;

const std::unique_ptr<Gemm> gemm = make_gemm(DeviceKind::host);

MlpShape small(Precision precision)
{
  return {.inputs = 12, .hidden = 9, .classes = 4, .precision = precision};
}

struct Images {
  std::vector<std::uint8_t> pixels = std::vector<std::uint8_t>(samples * 12);
  Mlp::Batch batch;
  Images()
  {
    for (std::size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = static_cast<std::uint8_t>(mix64(7, i));
    for (std::size_t i = 0; i < samples; ++i) {
      batch.images.push_back(pixels.data() + 12 * i);
      batch.labels.push_back(static_cast<std::uint8_t>(mix64(8, i) % 4));
    }
  }
};

using Values = std::vector<std::vector<float>>;  // global arrays by parameter

Values start(const MlpShape& shape)
{
  Values values;
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    values.push_back(Mlp::initial_values(shape, 3, p));
    for (std::size_t i = 0; i < values[p].size(); ++i)  // biases that are not zero
      values[p][i] += 0.01f * static_cast<float>(mix64(p, i) % 9);
  }
  return values;
}

/// Global index of each element of a rank's piece.
std::vector<std::size_t> piece(const MlpShape& shape, std::size_t p, int slot, int slots)
{
  const ParameterSet set = Mlp::parameters(shape);
  const Piece part = SlotLayout(set, slots, slot).piece(p);
  std::vector<std::size_t> indices(part.elements);
  for (std::size_t i = 0; i < part.elements; ++i) indices[i] = part.global_index(i);
  return indices;
}

void set_weights(Mlp& mlp, const MlpShape& shape, const Values& values, int slot, int slots)
{
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    std::vector<float> mine;
    for (std::size_t i : piece(shape, p, slot, slots)) mine.push_back(values[p][i]);
    std::vector<std::byte> stored(mine.size() * bytes_of(shape.precision));
    from_fp32(stored.data(), shape.precision, mine.data(), mine.size());
    REQUIRE(mine.size() == mlp.elements(p));
    mlp.set_weights(p, stored.data());
  }
}

std::vector<float> gradient(const Mlp& mlp, const MlpShape& shape, std::size_t p)
{
  std::vector<float> values(mlp.elements(p));
  to_fp32(values.data(), mlp.gradient(p), shape.precision, values.size());
  return values;
}

/// The loss in fp64 throughout, written as the definition says.
double reference_loss(const MlpShape& shape, const Values& w, const Mlp::Batch& batch)
{
  double loss = 0;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    std::vector<double> hidden(shape.hidden), logits(shape.classes);
    for (std::size_t h = 0; h < shape.hidden; ++h) {
      double z = w[Mlp::b1][h];
      for (std::size_t i = 0; i < shape.inputs; ++i)
        z += (batch.images[s][i] / 255.0 - 0.2860) / 0.3530 *
             static_cast<double>(w[Mlp::w1][i * shape.hidden + h]);
      hidden[h] = std::max(0.0, z);
    }
    double sum = 0;
    for (std::size_t k = 0; k < shape.classes; ++k) {
      logits[k] = w[Mlp::b2][k];
      for (std::size_t h = 0; h < shape.hidden; ++h)
        logits[k] += hidden[h] * static_cast<double>(w[Mlp::w2][h * shape.classes + k]);
      sum += std::exp(logits[k]);
    }
    loss += std::log(sum) - logits[batch.labels[s]];
  }
  return loss;
}

}  // namespace

TEST_CASE("Gradients are the derivatives of the loss at every model-parallel degree", "[mlp]")
{
  openblas_set_num_threads(1);
  const MlpShape shape = small(Precision::fp32);
  const Images images;
  const Values values = start(shape);
  Mlp mlp(shape, MPI_COMM_WORLD, samples, *gemm);
  set_weights(mlp, shape, values, world_rank(), world_size());
  constexpr double scale = 32;
  const double loss = mlp.loss_and_gradients(images.batch, scale);
  CHECK(loss == test::Approx(reference_loss(shape, values, images.batch)).epsilon(1e-5));

  constexpr float step = 1.0f / 4096;
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    const std::vector<float> computed = gradient(mlp, shape, p);
    const std::vector<std::size_t> indices = piece(shape, p, world_rank(), world_size());
    double largest = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      Values up = values, down = values;
      up[p][indices[i]] += step;
      down[p][indices[i]] -= step;
      const double h =
          static_cast<double>(up[p][indices[i]]) - static_cast<double>(down[p][indices[i]]);
      const double expected =
          scale *
          (reference_loss(shape, up, images.batch) - reference_loss(shape, down, images.batch)) / h;
      CAPTURE(p, i);
      CHECK(computed[i] == test::Approx(expected).margin(2e-3).epsilon(1e-3));
      largest = std::max(largest, std::abs(expected));
    }
    CHECK(largest > 0.1);  // there was something to compare
  }
}

TEST_CASE("Pieces at any degree make the gradients of the whole", "[mlp]")
{
  openblas_set_num_threads(1);
  for (Precision precision : {Precision::fp16, Precision::bf16, Precision::fp32}) {
    const MlpShape shape = small(precision);
    const Images images;
    Mlp whole(shape, MPI_COMM_SELF, samples, *gemm), part(shape, MPI_COMM_WORLD, samples, *gemm);
    set_weights(whole, shape, start(shape), 0, 1);
    set_weights(part, shape, start(shape), world_rank(), world_size());
    const double tolerance = precision == Precision::fp32   ? 1e-5
                             : precision == Precision::fp16 ? 5e-3
                                                            : 4e-2;
    CHECK(part.loss_and_gradients(images.batch, 1) ==
          test::Approx(whole.loss_and_gradients(images.batch, 1)).epsilon(tolerance));
    CHECK(part.count_correct(images.batch) == whole.count_correct(images.batch));
    for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
      const std::vector<float> all = gradient(whole, shape, p), mine = gradient(part, shape, p);
      const std::vector<std::size_t> indices = piece(shape, p, world_rank(), world_size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        CAPTURE(p, i);
        CHECK(mine[i] == test::Approx(all[indices[i]]).margin(4 * tolerance));
      }
    }
  }
}

TEST_CASE("All model-parallel ranks see the same loss and the same gradient of the output bias",
          "[mlp]")
{
  openblas_set_num_threads(1);
  const MlpShape shape = small(Precision::fp16);
  const Images images;
  Mlp mlp(shape, MPI_COMM_WORLD, samples, *gemm);
  set_weights(mlp, shape, start(shape), world_rank(), world_size());
  double loss = mlp.loss_and_gradients(images.batch, 64);
  std::vector<float> bias = gradient(mlp, shape, Mlp::b2), root = bias;
  double root_loss = loss;
  MPI_Bcast(&root_loss, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  MPI_Bcast(root.data(), static_cast<int>(root.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
  CHECK(loss == root_loss);
  CHECK(bias == root);
}

TEST_CASE("A large scale overflows fp16 gradients and no others, and leaves the loss alone",
          "[mlp]")
{
  openblas_set_num_threads(1);
  const Images images;
  for (Precision precision : {Precision::fp16, Precision::bf16, Precision::fp32}) {
    const MlpShape shape = small(precision);
    Mlp mlp(shape, MPI_COMM_WORLD, samples, *gemm);
    set_weights(mlp, shape, start(shape), world_rank(), world_size());
    const double loss = mlp.loss_and_gradients(images.batch, 1);
    CHECK(mlp.loss_and_gradients(images.batch, 0x1p20) == loss);
    bool finite = true;
    for (float value : gradient(mlp, shape, Mlp::b2)) finite = finite && std::isfinite(value);
    CHECK(finite == (precision != Precision::fp16));
  }
}

TEST_CASE("A NaN weight on one rank reaches the loss of all and is not repaired by the ReLU",
          "[mlp]")
{
  openblas_set_num_threads(1);
  const MlpShape shape = small(Precision::fp32);
  const Images images;
  for (int bad = 0; bad < world_size(); ++bad) {
    for (std::size_t p : {Mlp::w1, Mlp::b1, Mlp::w2}) {
      Mlp mlp(shape, MPI_COMM_WORLD, samples, *gemm);
      Values values = start(shape);
      if (world_rank() == bad)
        values[p][piece(shape, p, bad, world_size()).front()] =
            std::numeric_limits<float>::quiet_NaN();
      set_weights(mlp, shape, values, world_rank(), world_size());
      CHECK(std::isnan(mlp.loss_and_gradients(images.batch, 1)));
      CHECK(mlp.count_correct(images.batch) == 0);
    }
  }
}

TEST_CASE("Initial weights are He-uniform and their values are those of the global element",
          "[mlp]")
{
  const MlpShape shape{.inputs = 100, .hidden = 50, .classes = 10, .precision = Precision::fp32};
  const std::vector<float> values = Mlp::initial_values(shape, 1, Mlp::w1);
  REQUIRE(values.size() == 5000);
  double sum = 0, squares = 0;
  for (float value : values) {
    CHECK(std::abs(value) <= std::sqrt(6.0 / 100));
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  CHECK(std::abs(sum / 5000) < 0.01);
  CHECK(squares / 5000 == test::Approx(2.0 / 100).epsilon(0.05));
  CHECK(values != Mlp::initial_values(shape, 2, Mlp::w1));
}

#ifndef __SANITIZE_ADDRESS__  // it needs address space of its own
TEST_CASE("where OpenBLAS would wait for memory for ever there is an error instead")
{
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  std::size_t pages = 0;  // of address space in use
  std::ifstream("/proc/self/statm") >> pages;
  REQUIRE(pages > 0);
  rlimit tight = before;
  tight.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (64u << 20);
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  bool refused = false;
  try {
    make_gemm(DeviceKind::host);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  setrlimit(RLIMIT_AS, &before);
  CHECK(refused);
  CHECK(make_gemm(DeviceKind::host) != nullptr);
}
#endif
