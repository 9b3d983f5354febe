// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The optimizers of the reference model, seen by the model's own parameters: one for all, or one
// for the weights and one for the biases.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "mlp.hpp"
#include "train_config.hpp"
#include "tutti/sharded_adam.hpp"

namespace tutti::apps {

class ModelOptimizers {
 public:
  /// Collective over the topology. `topology` and `device` must outlive it.
  ModelOptimizers(const TrainConfig& config, const MlpShape& shape, const Topology& topology,
                  Device& device, const std::vector<double>& rank_weights);
  /// Collective: the values that a run with this seed begins with.
  void initialize(std::uint64_t seed);
  /// Collective.
  void close();

  std::vector<Participant*> participants() const;
  std::size_t allocated_bytes() const;
  std::string exchange_description() const { return all_.front()->exchange_description(); }

  // Of a parameter of the model.
  const void* weights(std::size_t p) const { return held_[p].optimizer->weights(held_[p].index); }
  void* gradient(std::size_t p) { return held_[p].optimizer->gradient(held_[p].index); }
  void set_absent(std::size_t p) { held_[p].optimizer->set_absent(held_[p].index); }

 private:
  struct Held {
    ShardedAdam* optimizer = nullptr;
    std::size_t index = 0;
  };
  MPI_Comm world_;
  MlpShape shape_;
  std::vector<std::unique_ptr<ShardedAdam>> all_;
  std::array<Held, Mlp::parameter_count> held_;
};

}  // namespace tutti::apps
