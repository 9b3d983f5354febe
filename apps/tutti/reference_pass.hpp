// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The reference model in fp64, written for reading: what the fast passes are held against.
#pragma once

#include <string>
#include <vector>

#include "mlp.hpp"

namespace tutti::apps {

/// Loss and gradients of the sum of the samples' losses, not scaled and not rounded at layer
/// borders.
struct ReferencePass {
  double loss = 0;
  std::array<std::vector<double>, Mlp::parameter_count> gradient;
};
/// `mlp` holds the whole model (one model-parallel rank) and has just computed this batch.
ReferencePass reference_pass(const Mlp& mlp, const MlpShape& shape, const Mlp::Batch& batch);

/// How far a kernel of the pass that `mlp` has just made is from the same kernel in fp64 on the
/// same inputs.
struct KernelError {
  std::string kernel;
  double error = 0;  ///< greatest |difference| / bound; above 1 the kernel is wrong
  double worst = 0;  ///< that difference
  std::size_t compared = 0, elements = 0;  ///< how many of them have finite inputs
};
/// The bound of an element is that of a sum of n products in fp32 in any order,
/// n u sum |a_i b_i| / (1 - n u) with u = 2^-24 (Higham, Accuracy and Stability of Numerical
/// Algorithms, 2nd ed., section 3.1), and half a unit in the last place of the model's precision. A
/// result beyond the range of the precision may be infinite. Elements with nonfinite inputs are
/// not compared: their kernel is not the first that went wrong.
std::vector<KernelError> kernel_errors(const Mlp& mlp, const MlpShape& shape,
                                       const Mlp::Batch& batch, double gradient_scale);

}  // namespace tutti::apps
