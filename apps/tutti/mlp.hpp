// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The reference model: a multilayer perceptron with one hidden layer, tensor-parallel over the
// model axis. It computes losses and gradients; it owns no optimizer state and takes no decision.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "gemm.hpp"
#include "tutti/parameters.hpp"
#include "tutti/precision.hpp"

namespace tutti::apps {

struct MlpShape {
  std::size_t inputs = 784, hidden = 256, classes = 10;
  Precision precision = Precision::fp16;
};

/// logits = relu(x W1 + b1) W2 + b2. Megatron's cut (Shoeybi et al. 2019): W1 [inputs x hidden] by
/// columns and b1 with them, W2 [hidden x classes] by rows, so that a rank's hidden units never
/// leave it. What remains is one sum over the model axis, of the logits; the backward pass needs
/// none, since the images want no gradient and every rank makes the whole gradient of the logits
/// for itself. The sum is an all-gather and an addition in rank order in fp32, so its bits do not
/// depend on where the ranks are. b2 is replicated and `identical`, added once after the sum.
///
/// Values are rounded to the shape's precision at layer borders: images, weights, the hidden layer
/// before its ReLU, logits, and the gradients of all of them; products are summed in fp32 by
/// `gemm`.
class Mlp {
 public:
  enum Parameter : std::size_t { w1, b1, w2, b2 };
  static constexpr std::size_t parameter_count = 4;

  /// Not collective. `model_axis` and `gemm` must outlive it. All memory for batches of up to
  /// `most_samples` is taken here, so that no rank can fail between the collectives of a pass.
  Mlp(MlpShape shape, MPI_Comm model_axis, std::size_t most_samples, Gemm& gemm);

  static ParameterSet parameters(const MlpShape& shape);
  static bool is_bias(std::size_t parameter) { return parameter == b1 || parameter == b2; }
  /// The global array of a parameter at the start: He-uniform weights from a counter-based
  /// generator on (seed, parameter, global element), so equal at any degree; biases are zero.
  static std::vector<float> initial_values(const MlpShape& shape, std::uint64_t seed,
                                           std::size_t parameter);

  /// Called with true before the collective of a pass, and with false after it; must not throw.
  void on_collective(std::function<void(bool)> action) { on_collective_ = std::move(action); }

  Precision precision() const { return shape_.precision; }
  /// Elements of this rank's piece.
  std::size_t elements(std::size_t parameter) const;
  /// Takes this rank's piece of a parameter in the shape's precision.
  void set_weights(std::size_t parameter, const void* values);

  /// Images as they are read, one pointer each.
  struct Batch {
    std::vector<const std::uint8_t*> images;
    std::vector<std::uint8_t> labels;
    std::size_t size() const { return images.size(); }
  };

  /// Collective over the model axis, all of whose ranks give the same batch (not empty). Returns
  /// the sum of the samples' cross-entropies; writes gradients of that sum times `gradient_scale`
  /// for gradient(p).
  double loss_and_gradients(const Batch& batch, double gradient_scale);
  /// This rank's piece of a gradient in the shape's precision, of the last loss_and_gradients().
  const void* gradient(std::size_t parameter) const { return gradient_[parameter].data(); }
  /// A copy of it in fp32.
  std::vector<float> gradient_in_fp32(std::size_t parameter) const;

  /// What the last loss_and_gradients() computed on its way, in fp32, one row a sample.
  struct Trace {
    const std::vector<float>&input, &hidden, &activation, &logits, &logits_gradient,
        &hidden_gradient;
  };
  Trace trace() const
  {
    return {input_, hidden_, activation_, logits_, logits_gradient_, hidden_gradient_};
  }
  /// This rank's piece of a parameter, as the model computes with it.
  const std::vector<float>& weights(std::size_t parameter) const { return weights_[parameter]; }

  /// Collective over the model axis: how many images get their label's class. A sample with a NaN
  /// logit is wrong.
  std::uint64_t count_correct(const Batch& batch);

 private:
  void forward(const Batch& batch);
  void store_gradient(std::size_t parameter, const std::vector<float>& values);

  MlpShape shape_;
  MPI_Comm model_axis_;
  std::function<void(bool)> on_collective_ = [](bool) {};
  Gemm& gemm_;
  int slots_ = 1;
  std::size_t units_ = 0;         ///< hidden units of this rank
  std::array<float, 256> pixel_;  ///< normalised and rounded value of each byte
  std::array<std::vector<float>, parameter_count> weights_;
  std::array<std::vector<std::byte>, parameter_count> gradient_;
  std::vector<float> input_, hidden_, activation_, partial_, gathered_, logits_, logits_gradient_,
      hidden_gradient_, product_;
  std::vector<double> exponential_;
};

}  // namespace tutti::apps
