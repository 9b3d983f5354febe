// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reading goes by pread at offsets that one rank took from HDF5: opens and look-ups of metadata do
// not grow with the number of ranks, and no rank can hang another.
#include "block_reader.hpp"

#include <fmt/format.h>

#include <bit>

#include "tutti/error.hpp"

namespace tutti::detail {

std::size_t first_illegal(const std::string& array, const float* values, std::size_t count)
{
  constexpr std::uint32_t exponent = 0x7f800000;
  std::uint32_t illegal = 0;
  const bool square = array == "exp_avg_sq";
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    illegal |= (bits & exponent) == exponent;
    illegal |= square && bits > 0x80000000u;  // -0 is a square
  }
  if (illegal == 0) return count;
  for (std::size_t i = 0;; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    if ((bits & exponent) == exponent || (square && bits > 0x80000000u)) return i;
  }
}

void BlockReader::read(const ManifestEntry& optimizer, const FlatLayout& layout,
                       const std::string& array, ArrayPlace place,
                       std::span<const std::size_t> blocks)
{
  buffer_.resize(blocks.size() * block_elements);
  hashes_.resize(blocks.size());
  for (std::size_t begin = 0; begin < blocks.size();) {
    std::size_t end = begin + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1) ++end;
    file_.read_at(place.data + blocks[begin] * block_bytes, &buffer_[begin * block_elements],
                  (end - begin) * block_bytes);
    if (verify_)
      file_.read_at(place.hashes + blocks[begin] * sizeof(std::uint64_t), &hashes_[begin],
                    (end - begin) * sizeof(std::uint64_t));
    begin = end;
  }
  for (std::size_t i = 0; verify_ && i < blocks.size(); ++i) {
    if (hash_block(&buffer_[i * block_elements]) == hashes_[i]) continue;
    const std::size_t p = layout.parameter_of(blocks[i]);
    throw CheckpointError(fmt::format(
        "checkpoint {} is damaged ({} block {}, of parameter '{}', does not have its "
        "hash); restore another one",
        file_name_, optimizer.data_path(array), blocks[i], optimizer.parameters[p].name));
  }
}

}  // namespace tutti::detail
