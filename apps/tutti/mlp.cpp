// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Forward and backward pass of the reference model on the host; matrix products are the device's.
#include "mlp.hpp"

#include <algorithm>
#include <cmath>

#include "rounding.hpp"
#include "tutti/digest.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {
namespace {

// Mean and standard deviation of the training pixels of Fashion-MNIST, in [0, 1].
constexpr float pixel_mean = 0.2860f, pixel_deviation = 0.3530f;

/// sum[j] = values[0][j] + values[1][j] + ... in row order.
void sum_rows(std::vector<float>& sum, const std::vector<float>& values, std::size_t rows,
              std::size_t columns)
{
  sum.assign(columns, 0.0f);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) sum[j] += values[i * columns + j];
}

}  // namespace

Mlp::Mlp(MlpShape shape, MPI_Comm model_axis, std::size_t most_samples, Gemm& gemm)
    : shape_(shape), model_axis_(model_axis), gemm_(gemm)
{
  int slot = 0;
  check_mpi(MPI_Comm_rank(model_axis, &slot), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(model_axis, &slots_), "MPI_Comm_size");
  const auto cut = [&](int m) {
    return shape_.hidden * static_cast<std::size_t>(m) / static_cast<std::size_t>(slots_);
  };
  units_ = cut(slot + 1) - cut(slot);
  if (units_ == 0)
    throw InvalidArgument(
        "the hidden layer is too small (a model-parallel rank would hold none of it); use more "
        "hidden units");
  for (std::size_t byte = 0; byte < pixel_.size(); ++byte)
    pixel_[byte] = (static_cast<float>(byte) / 255.0f - pixel_mean) / pixel_deviation;
  round_to(shape_.precision, pixel_.data(), pixel_.size());
  for (std::size_t p = 0; p < parameter_count; ++p) {
    weights_[p].resize(elements(p));
    gradient_[p].resize(elements(p) * bytes_of(shape_.precision));
    product_.reserve(std::max(product_.capacity(), elements(p)));
  }
  input_.reserve(most_samples * shape_.inputs);
  for (std::vector<float>* units : {&hidden_, &activation_, &hidden_gradient_})
    units->reserve(most_samples * units_);
  for (std::vector<float>* classes : {&partial_, &logits_, &logits_gradient_})
    classes->reserve(most_samples * shape_.classes);
  gathered_.reserve(most_samples * shape_.classes * static_cast<std::size_t>(slots_));
  exponential_.resize(shape_.classes);
}

ParameterSet Mlp::parameters(const MlpShape& shape)
{
  ParameterSet set;
  set.add({.name = "hidden.weight",
           .shape = {shape.inputs, shape.hidden},
           .precision = shape.precision,
           .placement = Placement::split,
           .split_axis = 1});
  set.add({.name = "hidden.bias",
           .shape = {shape.hidden},
           .precision = shape.precision,
           .placement = Placement::split,
           .split_axis = 0});
  set.add({.name = "output.weight",
           .shape = {shape.hidden, shape.classes},
           .precision = shape.precision,
           .placement = Placement::split,
           .split_axis = 0});
  set.add({.name = "output.bias",
           .shape = {shape.classes},
           .precision = shape.precision,
           .placement = Placement::replicated,
           .gradient = ReplicaGradient::identical});
  return set;
}

std::vector<float> Mlp::initial_values(const MlpShape& shape, std::uint64_t seed,
                                       std::size_t parameter)
{
  const std::size_t fan_in = parameter == w1 ? shape.inputs : shape.hidden;
  switch (parameter) {
    case b1:
      return std::vector<float>(shape.hidden, 0.0f);
    case b2:
      return std::vector<float>(shape.classes, 0.0f);
    default:
      break;
  }
  std::vector<float> values(parameter == w1 ? shape.inputs * shape.hidden
                                            : shape.hidden * shape.classes);
  const double limit = std::sqrt(6.0 / static_cast<double>(fan_in));
  const std::uint64_t stream = mix64(mix64(hash_of("initial weights"), seed), parameter);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double uniform = static_cast<double>(mix64(stream, i) >> 11) * 0x1p-53;  // [0, 1)
    values[i] = static_cast<float>((2 * uniform - 1) * limit);
  }
  return values;
}

std::size_t Mlp::elements(std::size_t parameter) const
{
  switch (parameter) {
    case w1:
      return shape_.inputs * units_;
    case b1:
      return units_;
    case w2:
      return units_ * shape_.classes;
    default:
      return shape_.classes;
  }
}

void Mlp::set_weights(std::size_t parameter, const void* values)
{
  to_fp32(weights_[parameter].data(), values, shape_.precision, elements(parameter));
}

void Mlp::forward(const Batch& batch)
{
  const std::size_t n = batch.size(), classes = shape_.classes;
  input_.resize(n * shape_.inputs);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < shape_.inputs; ++j)
      input_[i * shape_.inputs + j] = pixel_[batch.images[i][j]];

  hidden_.resize(n * units_);
  gemm_.multiply(false, false, n, units_, shape_.inputs, input_.data(), weights_[w1].data(),
                 hidden_.data());
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < units_; ++j) hidden_[i * units_ + j] += weights_[b1][j];
  round_to(shape_.precision, hidden_.data(), hidden_.size());
  // A NaN is not <= 0, so it stays one: a ReLU must not repair what the votes are to see.
  activation_.resize(hidden_.size());
  for (std::size_t i = 0; i < hidden_.size(); ++i)
    activation_[i] = hidden_[i] <= 0 ? 0.0f : hidden_[i];

  const std::size_t count = n * classes;
  partial_.resize(count);
  gathered_.resize(count * static_cast<std::size_t>(slots_));
  gemm_.multiply(false, false, n, classes, units_, activation_.data(), weights_[w2].data(),
                 partial_.data());
  on_collective_(true);
  check_mpi(MPI_Allgather(partial_.data(), static_cast<int>(count), MPI_FLOAT, gathered_.data(),
                          static_cast<int>(count), MPI_FLOAT, model_axis_),
            "MPI_Allgather");
  on_collective_(false);
  logits_.assign(gathered_.begin(), gathered_.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::size_t m = 1; m < static_cast<std::size_t>(slots_); ++m)
    for (std::size_t i = 0; i < count; ++i) logits_[i] += gathered_[m * count + i];
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < classes; ++k) logits_[i * classes + k] += weights_[b2][k];
  round_to(shape_.precision, logits_.data(), count);
}

double Mlp::loss_and_gradients(const Batch& batch, double gradient_scale)
{
  forward(batch);
  const std::size_t n = batch.size(), classes = shape_.classes;

  // Softmax cross-entropy in fp64, and its gradient: (softmax - one-hot) x gradient_scale.
  logits_gradient_.resize(n * classes);
  double loss = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float* logit = logits_.data() + i * classes;
    double greatest = logit[0], sum = 0;
    for (std::size_t k = 1; k < classes; ++k) greatest = logit[k] > greatest ? logit[k] : greatest;
    for (std::size_t k = 0; k < classes; ++k)
      sum += exponential_[k] = std::exp(logit[k] - greatest);
    loss += std::log(sum) - (logit[batch.labels[i]] - greatest);
    for (std::size_t k = 0; k < classes; ++k) {
      const double difference = exponential_[k] / sum - (k == batch.labels[i] ? 1.0 : 0.0);
      logits_gradient_[i * classes + k] = static_cast<float>(difference * gradient_scale);
    }
  }
  round_to(shape_.precision, logits_gradient_.data(), logits_gradient_.size());

  product_.resize(units_ * classes);
  gemm_.multiply(true, false, units_, classes, n, activation_.data(), logits_gradient_.data(),
                 product_.data());
  store_gradient(w2, product_);
  sum_rows(product_, logits_gradient_, n, classes);
  store_gradient(b2, product_);

  hidden_gradient_.resize(n * units_);
  gemm_.multiply(false, true, n, units_, classes, logits_gradient_.data(), weights_[w2].data(),
                 hidden_gradient_.data());
  round_to(shape_.precision, hidden_gradient_.data(), hidden_gradient_.size());
  // Selected, never multiplied by a mask: 0 x inf is NaN.
  for (std::size_t i = 0; i < hidden_.size(); ++i)
    hidden_gradient_[i] = hidden_[i] <= 0 ? 0.0f : hidden_gradient_[i];

  product_.resize(shape_.inputs * units_);
  gemm_.multiply(true, false, shape_.inputs, units_, n, input_.data(), hidden_gradient_.data(),
                 product_.data());
  store_gradient(w1, product_);
  sum_rows(product_, hidden_gradient_, n, units_);
  store_gradient(b1, product_);
  return loss;
}

void Mlp::store_gradient(std::size_t parameter, const std::vector<float>& values)
{
  from_fp32(gradient_[parameter].data(), shape_.precision, values.data(), elements(parameter));
}

std::vector<float> Mlp::gradient_in_fp32(std::size_t parameter) const
{
  std::vector<float> values(elements(parameter));
  to_fp32(values.data(), gradient(parameter), shape_.precision, values.size());
  return values;
}

std::uint64_t Mlp::count_correct(const Batch& batch)
{
  forward(batch);
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const float* logit = logits_.data() + i * shape_.classes;
    const float own = logit[batch.labels[i]];
    bool best = true;  // the first of equal ones wins, a comparison with NaN never holds
    for (std::size_t k = 0; k < shape_.classes; ++k)
      best = best && (k < batch.labels[i] ? own > logit[k] : own >= logit[k]);
    correct += best ? 1 : 0;
  }
  return correct;
}

}  // namespace tutti::apps
