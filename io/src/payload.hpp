// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One rank's part of a save: its blocks, what they are judged by, and their way into the file. No
// MPI and no HDF5, so that a thread can do it, and nothing that dies before the thread does.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flat_layout.hpp"
#include "own_layout.hpp"
#include "posix_file.hpp"
#include "tutti/device.hpp"
#include "tutti/participant.hpp"

namespace tutti::detail {

/// Flat blocks of a rank's shard, in the shard's order.
std::vector<std::size_t> flat_blocks_of(const ShardPlan& plan, const FlatLayout& layout, int rank);

/// One optimizer as this rank holds it and as the file will.
struct Source {
  std::string optimizer;
  ParameterSet parameters;
  ShardPlan plan;
  std::vector<StateArray> arrays;
  Device* device = nullptr;  ///< where the arrays are; nothing: the host reads them
  FlatLayout layout;
  std::vector<std::size_t> flat_blocks;  ///< of this rank's shard
};

/// One of the code's own arrays: this rank's part, and where its first block lies among those of
/// the array.
struct OwnSource {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t first_block = 0;
};

/// Blocks of a shard that lie at equal distances in the flat space: one hyperslab.
struct BlockRun {
  std::size_t first = 0;   ///< in the flat space
  std::size_t stride = 1;  ///< blocks; more than 1 where slots own a replicated parameter in turn
  std::size_t count = 0;
  std::size_t in_shard = 0;  ///< of the first one
};
inline constexpr std::size_t most_blocks_of_a_run = 4096;
/// A run has at most 64 MiB: far from the 2 GiB where MPI-IO of Open MPI 4 fails, and what is
/// staged at a time of arrays on a device.
std::vector<BlockRun> runs_of(const std::vector<std::size_t>& flat_blocks);

class Payload {
 public:
  explicit Payload(int rank) : rank_(rank) {}

  std::vector<Source> sources;
  std::vector<OwnSource> own;
  PosixFile file;                      ///< the temporary file, open on this rank
  std::vector<std::uint64_t> offsets;  ///< in the file, by optimizer and array, then of own arrays
  std::function<void(Phase)> reached;

  /// Copies the arrays into memory of this payload, which `before` brings along if it is large
  /// enough; from here on they are what they were now.
  void take_snapshot(Payload* before);

  /// Hashes all blocks and adds up the state's digest. Throws CheckpointError for a value that
  /// optimizer state cannot have.
  void judge();
  /// Writes all blocks at their offsets.
  using WriteAt = std::function<void(std::uint64_t offset, const void* data, std::size_t bytes)>;
  void write(const WriteAt& write_at) const;
  /// By `file` itself.
  void write() const
  {
    write([this](std::uint64_t offset, const void* data, std::size_t bytes) {
      file.write_at(offset, data, bytes);
    });
  }
  void sync() const;
  void reach(Phase phase) const
  {
    stop_if_given_up();
    if (reached) reached(phase);
  }

  const std::vector<std::vector<std::uint64_t>>& hashes() const { return hashes_; }
  std::uint64_t digest_part() const { return digest_part_; }

  /// Makes judge() and write() on another thread end soon, by an exception.
  void give_up() { given_up_ = true; }

  /// Calls `visit(run, values)` for all runs of an array; the values are in host memory.
  template <class Visit>
  void each_run(const Source& source, const StateArray& array, const Visit& visit) const
  {
    std::vector<float> staging;
    for (const BlockRun& run : runs_of(source.flat_blocks)) {
      const float* values = array.data + run.in_shard * block_elements;
      if (source.device != nullptr) {
        staging.resize(run.count * block_elements);
        source.device->copy(staging.data(), values, staging.size() * sizeof(float));
        values = staging.data();
      }
      visit(run, values);
    }
  }

  /// The same for one of the code's own arrays: `visit(first block, blocks, bytes)`. The last block
  /// is padded with zeros.
  template <class Visit>
  void each_run(const OwnSource& source, const Visit& visit) const
  {
    const std::size_t whole = source.bytes / block_bytes;
    for (std::size_t b = 0; b < whole; b += most_blocks_of_a_run) {
      const std::size_t count = std::min(most_blocks_of_a_run, whole - b);
      visit(source.first_block + b, count, source.data + b * block_bytes);
    }
    const std::size_t rest = source.bytes - whole * block_bytes;
    if (rest == 0) return;
    std::vector<std::byte> padded(block_bytes);
    std::copy_n(source.data + whole * block_bytes, rest, padded.data());
    visit(source.first_block + whole, 1, padded.data());
  }

 private:
  void judge_block(const Source& source, const StateArray& array, std::size_t in_shard,
                   const float* values) const;
  void stop_if_given_up() const;

  int rank_;
  std::vector<std::vector<std::uint64_t>> hashes_;  ///< in the order of `offsets`
  std::uint64_t digest_part_ = 0;
  std::unique_ptr<float[]> snapshot_;
  std::size_t snapshot_elements_ = 0;
  std::atomic<bool> given_up_ = false;
};

}  // namespace tutti::detail
