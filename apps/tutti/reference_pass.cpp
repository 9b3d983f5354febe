// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "reference_pass.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace tutti::apps {
namespace {

/// softmax(logits) - one-hot(label), and the loss.
double cross_entropy(const double* logits, std::size_t classes, std::uint8_t label,
                     double* difference)
{
  const double greatest = *std::max_element(logits, logits + classes);
  double sum = 0;
  for (std::size_t k = 0; k < classes; ++k) sum += difference[k] = std::exp(logits[k] - greatest);
  for (std::size_t k = 0; k < classes; ++k)
    difference[k] = difference[k] / sum - (k == label ? 1 : 0);
  return std::log(sum) - (logits[label] - greatest);
}

/// Unit roundoff, least subnormal and greatest value of a precision.
struct Format {
  double roundoff, least, greatest;
};
Format format_of(Precision precision)
{
  switch (precision) {
    case Precision::fp16:
      return {0x1p-11, 0x1p-24, 65504};
    case Precision::bf16:
      return {0x1p-8, 0x1p-133, 0x1.fep127};
    case Precision::fp32:
      break;
  }
  return {0x1p-24, 0x1p-149, std::numeric_limits<float>::max()};
}

/// A sum of products in fp64, and the sum of their magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double a, double b)
  {
    value += a * b;
    magnitude += std::abs(a * b);
  }
};

class Comparison {
 public:
  Comparison(std::string kernel, Precision precision, std::size_t length)
      : error_{std::move(kernel)}, format_(format_of(precision))
  {
    const double n = static_cast<double>(length) * 0x1p-24;
    growth_ = n / (1 - n);
  }
  void add(double computed, const Sum& reference)
  {
    ++error_.elements;
    if (!std::isfinite(reference.magnitude)) return;
    ++error_.compared;
    const double in_fp32 = growth_ * reference.magnitude;
    const double reached = std::abs(reference.value) + in_fp32;
    if (!std::isfinite(computed) && reached > format_.greatest) return;  // beyond its range
    const double bound = in_fp32 + format_.roundoff * reached + format_.least / 2;
    const double difference = std::abs(computed - reference.value);
    // A NaN compares as worse than anything.
    if (difference / bound <= error_.error) return;
    error_.error =
        std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference / bound;
    error_.worst = difference;
  }
  KernelError error() const { return error_; }

 private:
  KernelError error_;
  Format format_;
  double growth_ = 0;
};

}  // namespace

ReferencePass reference_pass(const Mlp& mlp, const MlpShape& shape, const Mlp::Batch& batch)
{
  const std::size_t inputs = shape.inputs, units = shape.hidden, classes = shape.classes;
  const std::vector<float>&input = mlp.trace().input, &w1 = mlp.weights(Mlp::w1),
        &b1 = mlp.weights(Mlp::b1), &w2 = mlp.weights(Mlp::w2), &b2 = mlp.weights(Mlp::b2);
  ReferencePass pass;
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) pass.gradient[p].resize(mlp.elements(p));
  std::vector<double> hidden(units), active(units), back(units), logits(classes), delta(classes);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const float* x = input.data() + s * inputs;
    for (std::size_t j = 0; j < units; ++j) hidden[j] = b1[j];
    for (std::size_t i = 0; i < inputs; ++i)
      for (std::size_t j = 0; j < units; ++j)
        hidden[j] += static_cast<double>(x[i]) * w1[i * units + j];
    for (std::size_t j = 0; j < units; ++j) active[j] = hidden[j] <= 0 ? 0 : hidden[j];
    for (std::size_t k = 0; k < classes; ++k) logits[k] = b2[k];
    for (std::size_t j = 0; j < units; ++j)
      for (std::size_t k = 0; k < classes; ++k) logits[k] += active[j] * w2[j * classes + k];
    pass.loss += cross_entropy(logits.data(), classes, batch.labels[s], delta.data());
    for (std::size_t j = 0; j < units; ++j) {
      back[j] = 0;
      for (std::size_t k = 0; k < classes; ++k) {
        pass.gradient[Mlp::w2][j * classes + k] += active[j] * delta[k];
        back[j] += delta[k] * w2[j * classes + k];
      }
      if (hidden[j] <= 0) back[j] = 0;
      pass.gradient[Mlp::b1][j] += back[j];
    }
    for (std::size_t k = 0; k < classes; ++k) pass.gradient[Mlp::b2][k] += delta[k];
    for (std::size_t i = 0; i < inputs; ++i)
      for (std::size_t j = 0; j < units; ++j)
        pass.gradient[Mlp::w1][i * units + j] += x[i] * back[j];
  }
  return pass;
}

std::vector<KernelError> kernel_errors(const Mlp& mlp, const MlpShape& shape,
                                       const Mlp::Batch& batch, double gradient_scale)
{
  const std::size_t n = batch.size(), inputs = shape.inputs, units = shape.hidden,
                    classes = shape.classes;
  const Mlp::Trace t = mlp.trace();
  const Precision precision = shape.precision;
  std::vector<KernelError> errors;

  /// Rows of `a` by columns of `b`, and a bias.
  const auto product =
      [&](const char* name, std::size_t rows, std::size_t columns, std::size_t length,
          const std::function<double(std::size_t, std::size_t)>& a,
          const std::function<double(std::size_t, std::size_t)>& b, const std::vector<float>* bias,
          const std::function<double(std::size_t, std::size_t)>& computed) {
        Comparison comparison(name, precision, length + (bias != nullptr ? 1 : 0));
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t c = 0; c < columns; ++c) {
            Sum sum;
            for (std::size_t i = 0; i < length; ++i) sum.add(a(r, i), b(i, c));
            if (bias != nullptr) sum.add((*bias)[c], 1);
            comparison.add(computed(r, c), sum);
          }
        errors.push_back(comparison.error());
      };
  const auto rows_of = [](const std::vector<float>& values, std::size_t columns) {
    return [&values, columns](std::size_t r, std::size_t c) -> double {
      return values[r * columns + c];
    };
  };
  const auto columns_of = [](const std::vector<float>& values, std::size_t columns) {
    return [&values, columns](std::size_t r, std::size_t c) -> double {
      return values[c * columns + r];
    };
  };
  const auto ones = [](std::size_t, std::size_t) { return 1.0; };

  product("hidden product", n, units, inputs, rows_of(t.input, inputs),
          rows_of(mlp.weights(Mlp::w1), units), &mlp.weights(Mlp::b1), rows_of(t.hidden, units));
  Comparison relu("ReLU", precision, 1);
  for (std::size_t i = 0; i < t.hidden.size(); ++i)
    relu.add(t.activation[i], Sum{t.hidden[i] <= 0 ? 0.0 : t.hidden[i], std::abs(t.hidden[i])});
  errors.push_back(relu.error());
  product("logits", n, classes, units, rows_of(t.activation, units),
          rows_of(mlp.weights(Mlp::w2), classes), &mlp.weights(Mlp::b2),
          rows_of(t.logits, classes));

  Comparison softmax("cross-entropy gradient", precision, 1);
  std::vector<double> logits(classes), delta(classes);
  for (std::size_t s = 0; s < n; ++s) {
    for (std::size_t k = 0; k < classes; ++k) logits[k] = t.logits[s * classes + k];
    cross_entropy(logits.data(), classes, batch.labels[s], delta.data());
    for (std::size_t k = 0; k < classes; ++k) {
      const double value = delta[k] * gradient_scale;
      softmax.add(t.logits_gradient[s * classes + k], Sum{value, std::abs(gradient_scale)});
    }
  }
  errors.push_back(softmax.error());

  Comparison back("hidden gradient", precision, classes);
  for (std::size_t s = 0; s < n; ++s)
    for (std::size_t j = 0; j < units; ++j) {
      Sum sum;
      for (std::size_t k = 0; k < classes; ++k)
        sum.add(t.logits_gradient[s * classes + k], mlp.weights(Mlp::w2)[j * classes + k]);
      if (t.hidden[s * units + j] <= 0) sum = {};
      back.add(t.hidden_gradient[s * units + j], sum);
    }
  errors.push_back(back.error());

  const std::vector<float> w1 = mlp.gradient_in_fp32(Mlp::w1), b1 = mlp.gradient_in_fp32(Mlp::b1),
                           w2 = mlp.gradient_in_fp32(Mlp::w2), b2 = mlp.gradient_in_fp32(Mlp::b2);
  product("output.weight gradient", units, classes, n, columns_of(t.activation, units),
          rows_of(t.logits_gradient, classes), nullptr, rows_of(w2, classes));
  product("output.bias gradient", 1, classes, n, ones, rows_of(t.logits_gradient, classes), nullptr,
          rows_of(b2, classes));
  product("hidden.weight gradient", inputs, units, n, columns_of(t.input, inputs),
          rows_of(t.hidden_gradient, units), nullptr, rows_of(w1, units));
  product("hidden.bias gradient", 1, units, n, ones, rows_of(t.hidden_gradient, units), nullptr,
          rows_of(b1, units));
  return errors;
}

}  // namespace tutti::apps
