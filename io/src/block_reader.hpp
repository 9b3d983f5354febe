// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Whole blocks of a checkpoint's payload, verified before anybody cuts them, and what a value of
// optimizer state may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flat_layout.hpp"
#include "format.hpp"
#include "posix_file.hpp"

namespace tutti::detail {

/// Index of the first value that optimizer state cannot have (inf, NaN; in "exp_avg_sq" also
/// less than zero); `count` if there is none.
std::size_t first_illegal(const std::string& array, const float* values, std::size_t count);

class BlockReader {
 public:
  BlockReader(const PosixFile& file, std::string file_name, bool verify)
      : file_(file), file_name_(std::move(file_name)), verify_(verify)
  {
  }
  /// Reads `blocks` (ascending, flat) of one array into buffer(), one after the other. Throws
  /// CheckpointError that names dataset, parameter and block for one without its hash.
  void read(const ManifestEntry& optimizer, const FlatLayout& layout, const std::string& array,
            ArrayPlace place, std::span<const std::size_t> blocks);
  const float* buffer() const { return buffer_.data(); }

 private:
  const PosixFile& file_;
  std::string file_name_;
  bool verify_;
  std::vector<float> buffer_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace tutti::detail
