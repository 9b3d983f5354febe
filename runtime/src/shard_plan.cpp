// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Handing out the blocks of each slot to its data-parallel ranks. A pure function: no
// communication, so every rank computes the whole plan and the ballot compares its hash.
#include "tutti/shard_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

// Blocks for each of the ranks by largest remainder, ties to the lower rank; a rank of weight zero
// gets none. The products and quotients stand alone, so no compiler can contract them into an FMA
// and give another plan on another machine.
std::vector<std::size_t> apportion(std::size_t blocks, std::vector<double> weights)
{
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight /= largest;  // so that their sum is finite
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);

  std::vector<std::size_t> share(weights.size());
  std::vector<double> remainder(weights.size());
  std::vector<std::size_t> order;
  std::size_t left = blocks;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    const double product = static_cast<double>(blocks) * weights[r];
    const double quota = product / sum;
    const double whole = std::floor(quota);
    share[r] = std::min(left, static_cast<std::size_t>(whole));
    left -= share[r];
    remainder[r] = quota - whole;
    if (weights[r] > 0) order.push_back(r);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainder[a] > remainder[b]; });
  for (std::size_t i = 0; left > 0; ++i, --left) ++share[order[i % order.size()]];
  return share;
}

void check_weights(const std::vector<double>& weights, int data_parallel, int model_parallel)
{
  const std::size_t ranks =
      static_cast<std::size_t>(data_parallel) * static_cast<std::size_t>(model_parallel);
  if (weights.size() != ranks) {
    throw InvalidArgument(
        fmt::format("{} rank weights do not fit {} ranks (one number a rank is needed); give {} "
                    "weights or none",
                    weights.size(), ranks, ranks));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    if (!std::isfinite(weights[r]) || weights[r] < 0) {
      throw InvalidArgument(fmt::format(
          "rank {} has a weight of {} (a weight is a finite number of 0 or more); mend the weights",
          r, weights[r]));
    }
  }
  for (int m = 0; m < model_parallel; ++m) {
    bool any = false;
    for (int d = 0; d < data_parallel; ++d) any |= weights[d * model_parallel + m] > 0;
    if (!any) {
      throw InvalidArgument(fmt::format(
          "nobody can own the blocks of model-parallel slot {} (all of its {} data-parallel ranks "
          "have weight 0); give one of them a weight",
          m, data_parallel));
    }
  }
}

}  // namespace

ShardPlan::ShardPlan(const ParameterSet& parameters, int data_parallel, int model_parallel,
                     const std::vector<double>& given)
    : data_parallel_(data_parallel),
      model_parallel_(model_parallel),
      parameters_hash_(parameters.hash())
{
  if (data_parallel < 1 || model_parallel < 1) {
    throw InvalidArgument(
        fmt::format("a plan for {} data-parallel by {} model-parallel ranks is not possible (both "
                    "must be at least 1); check the degrees",
                    data_parallel, model_parallel));
  }
  const std::vector<double> weights =
      given.empty() ? std::vector<double>(static_cast<std::size_t>(size()), 1.0) : given;
  check_weights(weights, data_parallel, model_parallel);

  for (std::size_t p = 0; p < parameters.size(); ++p) {
    placement_.push_back({parameters[p].placement, parameters[p].gradient});
  }
  shards_.resize(static_cast<std::size_t>(size()));
  for (int m = 0; m < model_parallel; ++m) {
    const SlotLayout& layout = layouts_.emplace_back(parameters, model_parallel, m);

    std::vector<std::uint32_t> owned;  // by some rank of this slot
    for (std::size_t p = 0; p < layout.size(); ++p) {
      const Piece& piece = layout.piece(p);
      const bool replicated = placement(p) == Placement::replicated;
      const std::size_t first = replicated ? static_cast<std::size_t>(m) : 0;
      const std::size_t stride = replicated ? static_cast<std::size_t>(model_parallel) : 1;
      for (std::size_t b = first; b < piece.blocks; b += stride) {
        owned.push_back(static_cast<std::uint32_t>(piece.first_block + b));
      }
    }

    std::vector<double> slot_weights;
    for (int d = 0; d < data_parallel; ++d) slot_weights.push_back(weights[d * model_parallel + m]);
    const std::vector<std::size_t> share = apportion(owned.size(), slot_weights);
    std::vector<std::size_t>& begin = shard_begin_.emplace_back();
    auto next = owned.begin();
    for (int d = 0; d < data_parallel; ++d) {
      const auto end = next + static_cast<std::ptrdiff_t>(share[d]);
      shards_[d * model_parallel + m].assign(next, end);
      // An empty shard begins where the next one does, so the last to begin at or before a block
      // owns it.
      begin.push_back(next == owned.end() ? layout.blocks() : *next);
      next = end;
    }
  }
}

ShardPlan::Owner ShardPlan::owner(int slot, std::size_t block) const
{
  int owning_slot = slot;
  if (replicated(slot, block)) {
    const std::uint32_t parameter = layouts_[slot].parameter_of(block);
    const std::size_t b = block - layouts_[slot].piece(parameter).first_block;
    owning_slot = static_cast<int>(b % static_cast<std::size_t>(model_parallel_));
    block = layouts_[owning_slot].piece(parameter).first_block + b;
  }
  const std::vector<std::size_t>& begin = shard_begin_[owning_slot];
  const auto after = std::upper_bound(begin.begin(), begin.end(), block);
  const int d = static_cast<int>(after - begin.begin()) - 1;
  return {d * model_parallel_ + owning_slot, static_cast<std::uint32_t>(block)};
}

std::uint64_t ShardPlan::hash() const
{
  std::uint64_t hash = mix64(parameters_hash_, static_cast<std::uint64_t>(data_parallel_));
  hash = mix64(hash, static_cast<std::uint64_t>(model_parallel_));
  // Shards are consecutive ranges, so their lengths say who owns what.
  for (const auto& shard : shards_) hash = mix64(hash, shard.size());
  return hash;
}

}  // namespace tutti
