// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Whole blocks of a checkpoint's payload, verified before anybody cuts them, and what a value of
// optimizer state may be. All reading of payload is here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contents.hpp"
#include "posix_file.hpp"
#include "tutti/checkpoint_restore.hpp"

namespace tutti::detail {

/// Blocks that are read at a time: 4 MiB of an array.
inline constexpr std::size_t blocks_at_a_time = 256;

/// Index of the first value that optimizer state cannot have (inf, NaN; in "exp_avg_sq" also
/// less than zero); `count` if there is none.
std::size_t first_illegal(const std::string& array, const float* values, std::size_t count);

class BlockReader {
 public:
  BlockReader(const PosixFile& file, const Contents& contents, Verify verify)
      : file_(file), contents_(contents), verify_(verify)
  {
  }
  /// Reads `blocks` (ascending, flat) of one array, one after the other, into buffer() or `into`.
  /// Throws
  /// CheckpointError that names dataset, parameter and block for one without its hash, and the
  /// element too for a value that may not be.
  void read(std::size_t optimizer, std::size_t array, std::span<const std::size_t> blocks,
            float* into = nullptr);
  /// The same of one of the code's own arrays; any value may be.
  void read_own(std::size_t array, std::span<const std::size_t> blocks);
  const std::byte* buffer() const { return reinterpret_cast<const std::byte*>(buffer_.data()); }

 private:
  const float* load(ArrayPlace place, std::span<const std::size_t> blocks, float* into);
  bool is_hashed(std::size_t optimizer, std::size_t array, std::size_t block) const;
  void judge(std::size_t optimizer, std::size_t array, std::size_t block,
             const float* values) const;

  const PosixFile& file_;
  const Contents& contents_;
  Verify verify_;
  std::vector<float> buffer_;
  std::vector<std::uint64_t> hashes_;
};

/// Runs of bytes on their way out of whole blocks, for any number of arrays of one layout.
class Cut {
 public:
  void clear();
  /// `count` bytes from byte `from` of the array in the file on go to byte `to` of the target.
  void add(std::size_t from, std::size_t to, std::size_t count);
  /// About how many blocks are to be read for what was added.
  std::size_t pending() const { return blocks_.size(); }
  /// The blocks to be read, ascending, each once.
  std::span<const std::size_t> blocks();
  /// True if the target gets whole blocks one after the other, as a read leaves them: then they may
  /// be read right into it. What follows a piece in its last block comes along.
  bool is_straight();
  /// `buffer` holds what blocks() says, one after the other.
  void take(const std::byte* buffer, void* target) const;

 private:
  struct Copy {
    std::size_t from = 0, to = 0, count = 0;
  };
  std::vector<Copy> copies_;
  std::vector<std::size_t> blocks_;
};

/// `wanted` of own array `array`, row-major, into `data`, a few blocks at a time.
void read_own_part(BlockReader& reader, const OwnArrayEntry& entry, std::size_t array,
                   const ArrayPart& wanted, void* data);

}  // namespace tutti::detail
