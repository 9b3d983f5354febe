// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Judging, hashing and writing of a rank's blocks. Both run over the same pieces, whether the
// arrays are on the host, on a device or in a snapshot.
#include "payload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "block_reader.hpp"
#include "format.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

/// Floats that hold so many bytes, up to the next cache line.
std::size_t floats_for(std::size_t bytes) { return (bytes + 63) / 64 * 16; }

}  // namespace

std::vector<std::size_t> flat_blocks_of(const ShardPlan& plan, const FlatLayout& layout, int rank)
{
  const int slot = rank % plan.model_parallel();
  const SlotLayout& mine = plan.layout(slot);
  std::vector<std::size_t> blocks;
  blocks.reserve(plan.shard(rank).size());
  for (const std::uint32_t block : plan.shard(rank)) {
    const std::uint32_t p = mine.parameter_of(block);
    blocks.push_back(layout.block(p, slot, block - mine.piece(p).first_block));
  }
  return blocks;
}

std::vector<BlockRun> runs_of(const std::vector<std::size_t>& flat_blocks)
{
  std::vector<BlockRun> runs;
  for (std::size_t i = 0; i < flat_blocks.size(); ++i) {
    if (!runs.empty() && runs.back().count < most_blocks_of_a_run) {
      BlockRun& run = runs.back();
      const std::size_t distance = flat_blocks[i] - flat_blocks[i - 1];
      if (run.count == 1) run.stride = distance;
      if (distance == run.stride) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({flat_blocks[i], 1, 1, i});
  }
  return runs;
}

void Payload::take_snapshot(Payload* before)
{
  std::size_t elements = 0;
  for (const Source& source : sources)
    elements += source.arrays.size() * source.flat_blocks.size() * block_elements;
  for (const OwnSource& source : own) elements += floats_for(source.bytes);
  if (before != nullptr && before->snapshot_elements_ >= elements) {
    // Its pages are there already: the copy is several times faster than into new ones.
    snapshot_ = std::move(before->snapshot_);
    snapshot_elements_ = std::exchange(before->snapshot_elements_, 0);
  } else {
    if (before != nullptr) {
      before->snapshot_.reset();
      before->snapshot_elements_ = 0;
    }
    snapshot_.reset(new float[elements]);
    snapshot_elements_ = elements;
  }
  float* to = snapshot_.get();
  for (Source& source : sources) {
    const std::size_t count = source.flat_blocks.size() * block_elements;
    for (StateArray& array : source.arrays) {
      if (source.device != nullptr && count > 0)
        source.device->copy(to, array.data, count * sizeof(float));
      else if (count > 0)
        std::memcpy(to, array.data, count * sizeof(float));
      array.data = to;
      to += count;
    }
    source.device = nullptr;
  }
  for (OwnSource& source : own) {
    if (source.bytes > 0) std::memcpy(to, source.data, source.bytes);
    source.data = reinterpret_cast<const std::byte*>(to);
    to += floats_for(source.bytes);
  }
}

void Payload::judge_block(const Source& source, const StateArray& array, std::size_t in_shard,
                          const float* values) const
{
  const SlotLayout& slot = source.plan.layout(rank_ % source.plan.model_parallel());
  const std::uint32_t block = source.plan.shard(rank_)[in_shard];
  const std::uint32_t p = slot.parameter_of(block);
  const Piece& piece = slot.piece(p);
  const std::size_t begin = (block - piece.first_block) * block_elements;
  const std::size_t count = std::min(block_elements, piece.elements - begin);
  const std::size_t bad = first_illegal(array.name, values, count);
  if (bad == count) return;
  throw CheckpointError(fmt::format(
      "nothing was saved ({}/{} element {} has {} = {}); restart from the last checkpoint",
      source.optimizer, source.parameters[p].name, piece.global_index(begin + bad), array.name,
      values[bad]));
}

void Payload::judge()
{
  hashes_.clear();
  digest_part_ = 0;
  for (const Source& source : sources) {
    const StateView view{&source.parameters, &source.plan, source.arrays, source.device};
    for (const StateArray& array : source.arrays) {
      auto& hashes = hashes_.emplace_back();
      hashes.reserve(source.flat_blocks.size());
      each_run(source, array, [&](const BlockRun& run, const float* values) {
        stop_if_given_up();
        for (std::size_t b = 0; b < run.count; ++b) {
          const float* block = values + b * block_elements;
          judge_block(source, array, run.in_shard + b, block);
          hashes.push_back(hash_block(block));
          digest_part_ +=
              state_digest_part(source.optimizer, view, rank_, array.name, run.in_shard + b, block);
        }
      });
    }
  }
  for (const OwnSource& source : own) {  // what they hold is the code's own matter
    auto& hashes = hashes_.emplace_back();
    each_run(source, [&](std::size_t, std::size_t count, const std::byte* bytes) {
      stop_if_given_up();
      for (std::size_t b = 0; b < count; ++b)
        hashes.push_back(hash_bytes(bytes + b * block_bytes, block_bytes));
    });
  }
}

void Payload::write(const WriteAt& write_at) const
{
  auto offset = offsets.begin();
  for (const Source& source : sources)
    for (const StateArray& array : source.arrays) {
      each_run(source, array, [&](const BlockRun& run, const float* values) {
        stop_if_given_up();
        // Blocks side by side go in one call, the others one by one.
        const std::size_t together = run.stride == 1 ? run.count : 1;
        for (std::size_t b = 0; b < run.count; b += together)
          write_at(*offset + (run.first + b * run.stride) * block_bytes,
                   values + b * block_elements, together * block_bytes);
        const std::size_t span = (run.count - 1) * run.stride + 1;
        file.start_writing(*offset + run.first * block_bytes, span * block_bytes);
      });
      ++offset;
    }
  for (const OwnSource& source : own) {
    each_run(source, [&](std::size_t first, std::size_t count, const std::byte* bytes) {
      stop_if_given_up();
      write_at(*offset + first * block_bytes, bytes, count * block_bytes);
    });
    ++offset;
  }
}

void Payload::sync() const { file.sync(); }

void Payload::stop_if_given_up() const
{
  if (given_up_) throw IoError("the save was given up");
}

}  // namespace tutti::detail
