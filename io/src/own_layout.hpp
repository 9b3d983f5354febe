// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where a code's own arrays lie in a checkpoint: the parts of the ranks that saved, one after the
// other, each row-major and padded with zeros to whole blocks of 16 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/block.hpp"
#include "tutti/own_arrays.hpp"

namespace tutti::detail {

/// Of a block of any array in the file.
inline constexpr std::size_t block_bytes = block_elements * sizeof(float);

/// The part of one rank that saved; parts without elements are not kept.
struct SavedPart {
  int rank = 0;
  ArrayPart part;
  std::size_t first_block = 0;
};

struct OwnArrayEntry {
  std::string name;
  ElementType type = ElementType::float64;
  std::vector<std::size_t> shape;
  std::string group;             ///< of its flat dataset "data" and of "hashes"
  std::size_t blocks = 0;        ///< of 16 KiB
  std::vector<SavedPart> parts;  ///< by rank

  std::size_t elements_in_file() const { return blocks * block_bytes / bytes_of(type); }
  std::string data_path() const { return group + "/data"; }
  std::string hash_path() const { return group + "/hashes"; }
  std::string view_path() const { return group + "/values"; }
};

/// A scalar's bits, in the low bytes.
struct OwnScalarEntry {
  std::string name;
  ElementType type = ElementType::float64;
  std::uint64_t bits = 0;
  std::string path;  ///< of its dataset, for people
};

/// Whole blocks that a part of so many elements takes.
std::size_t own_blocks(const ArrayPart& part, ElementType type);

/// Throws InvalidArgument unless this can be a part of an array of that shape.
void require_part_of(const std::string& name, const std::vector<std::size_t>& shape,
                     const ArrayPart& part);

/// Throws InvalidArgument unless every element of the array lies in exactly one part; names two
/// ranks whose parts overlap.
void require_partition(const OwnArrayEntry& array);

/// Calls `run(element of saved, element of wanted, count)` for what two parts of the same array
/// share, in runs that are contiguous in both, ascending in `saved`.
void for_each_run(const ArrayPart& saved, const ArrayPart& wanted,
                  const std::function<void(std::size_t, std::size_t, std::size_t)>& run);

}  // namespace tutti::detail
