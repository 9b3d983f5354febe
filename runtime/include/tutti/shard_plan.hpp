// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Who owns which block: every block of every parameter has exactly one owner in the whole job. The
// plan is a pure function of the parameters, the degrees and the rank weights, known whole on every
// rank.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/parameters.hpp"

namespace tutti {

class ShardPlan {
 public:
  /// `weights`: one non-negative number a world rank (empty: all equal). A piece's blocks go to the
  /// data-parallel ranks of its slot; block b of a replicated parameter to slot b mod M. Within a
  /// slot the blocks are handed out as consecutive ranges in proportion to the weights (largest
  /// remainder). Throws InvalidArgument when all weights of a slot's ranks are zero, one is
  /// negative or not finite, or their number is not D x M. Not collective; pure in its arguments
  /// (fp64 without contractible products).
  ShardPlan(const ParameterSet& parameters, int data_parallel, int model_parallel,
            const std::vector<double>& weights = {});

  int data_parallel() const { return data_parallel_; }
  int model_parallel() const { return model_parallel_; }
  int size() const { return data_parallel_ * model_parallel_; }
  const SlotLayout& layout(int slot) const { return layouts_[slot]; }
  /// Blocks that world rank `rank` owns, as indices into its slot's layout, ascending: the shard's
  /// order.
  const std::vector<std::uint32_t>& shard(int rank) const { return shards_[rank]; }
  /// The block that all readers of `block` of `slot` mean: the owner's world rank, and the block's
  /// index in the layout of the owner's slot (another slot and index than asked for when a replica
  /// is owned elsewhere).
  struct Owner {
    int rank;
    std::uint32_t block;
  };
  Owner owner(int slot, std::size_t block) const;
  /// True when `block` of `slot` belongs to a parameter that every slot holds.
  bool replicated(int slot, std::size_t block) const
  {
    return placement_[layouts_[slot].parameter_of(block)].placement == Placement::replicated;
  }
  /// How a parameter lies on the model-parallel axis, and what its slots' gradients are.
  Placement placement(std::size_t parameter) const { return placement_[parameter].placement; }
  ReplicaGradient gradient(std::size_t parameter) const { return placement_[parameter].gradient; }

  /// Agreed in every ballot: of the parameters, the degrees and who owns which block. Weights that
  /// lead to the same plan have the same hash.
  std::uint64_t hash() const;

 private:
  struct Kind {
    Placement placement;
    ReplicaGradient gradient;
  };
  int data_parallel_, model_parallel_;
  std::vector<Kind> placement_;
  std::vector<SlotLayout> layouts_;
  std::vector<std::vector<std::uint32_t>> shards_;
  std::vector<std::vector<std::size_t>> shard_begin_;  // [slot][d]: first block of the shard
  std::uint64_t parameters_hash_ = 0;
};

}  // namespace tutti
