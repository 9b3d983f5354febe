// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model_optimizers.hpp"

#include "agreement.hpp"

namespace tutti::apps {

ModelOptimizers::ModelOptimizers(const TrainConfig& config, const MlpShape& shape,
                                 const Topology& topology, Device& device,
                                 const std::vector<double>& rank_weights)
    : world_(topology.world()), shape_(shape)
{
  const ParameterSet model = Mlp::parameters(shape);
  const bool own = config.bias_optimizer == "own";
  for (const bool biases : {false, true}) {
    if (biases && !own) break;
    ParameterSet some;
    std::vector<std::size_t> members;
    for (std::size_t p = 0; p < model.size(); ++p)
      if (!own || Mlp::is_bias(p) == biases) {
        members.push_back(p);
        some.add(model[p]);
      }
    AdamOptions options = make_adam_options(config, rank_weights);
    if (biases) {
      options.name += "_biases";
      options.weight_decay = 0;
    }
    collectively(world_, [&] {
      all_.push_back(
          std::make_unique<ShardedAdam>(topology, device, std::move(some), std::move(options)));
    });
    for (std::size_t i = 0; i < members.size(); ++i) held_[members[i]] = {all_.back().get(), i};
  }
}

void ModelOptimizers::initialize(std::uint64_t seed)
{
  for (const auto& optimizer : all_)
    collectively(world_, [&] {
      optimizer->initialize([&](std::size_t i) {
        std::size_t p = 0;
        while (held_[p].optimizer != optimizer.get() || held_[p].index != i) ++p;
        return Mlp::initial_values(shape_, seed, p);
      });
    });
}

void ModelOptimizers::close()
{
  for (const auto& optimizer : all_) optimizer->close_buffers();
}

std::vector<Participant*> ModelOptimizers::participants() const
{
  std::vector<Participant*> out;
  for (const auto& optimizer : all_) out.push_back(optimizer.get());
  return out;
}

std::size_t ModelOptimizers::allocated_bytes() const
{
  std::size_t bytes = 0;
  for (const auto& optimizer : all_) bytes += optimizer->allocated_bytes();
  return bytes;
}

}  // namespace tutti::apps
