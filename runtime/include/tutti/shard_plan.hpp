// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Who owns which block: every block of every parameter has exactly one owner in the whole job. The plan
// is a pure function of the parameters, the degrees and the rank weights, known whole on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/parameters.hpp"

namespace tutti {

class ShardPlan {
 public:
  /// `weights`: one non-negative number a world rank (empty: all equal). A piece's blocks go to the
  /// data-parallel ranks of its slot; block b of a replicated parameter to slot b mod M. Within a slot the
  /// blocks are handed out as consecutive ranges in proportion to the weights (largest remainder).
  /// Throws InvalidArgument when all weights of a slot's ranks are zero, or one is negative or not finite.
  ShardPlan(const ParameterSet& parameters, int data_parallel, int model_parallel,
            std::vector<double> weights = {});

  int data_parallel() const { return data_parallel_; }
  int model_parallel() const { return model_parallel_; }
  int size() const { return data_parallel_ * model_parallel_; }
  const SlotLayout& layout(int slot) const { return layouts_[slot]; }
  /// Blocks that world rank `rank` owns, as indices into its slot's layout, ascending: the shard's order.
  const std::vector<std::uint32_t>& shard(int rank) const { return shards_[rank]; }
  /// Agreed in every ballot.
  std::uint64_t hash() const;

 private:
  int data_parallel_, model_parallel_;
  std::vector<double> weights_;
  std::vector<SlotLayout> layouts_;
  std::vector<std::vector<std::uint32_t>> shards_;
  std::uint64_t parameters_hash_ = 0;
};

}  // namespace tutti
