// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reading goes by pread at offsets that one rank took from HDF5: opens and look-ups of metadata do
// not grow with the number of ranks, and no rank can hang another.
#include "block_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

/// Of the blocks in a parameter's middle, Verify::sampled hashes one in so many.
constexpr std::uint64_t sampled_one_in = 16;

}  // namespace

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

/// The same answer wherever and whenever it is asked.
bool BlockReader::is_hashed(std::size_t optimizer, std::size_t array, std::size_t block) const
{
  if (verify_ != Verify::sampled) return verify_ == Verify::full;
  const FlatLayout& layout = contents_.layouts[optimizer];
  const std::size_t p = layout.parameter_of(block);
  const std::size_t end = p + 1 < layout.parameters() ? layout.first_block(p + 1) : layout.blocks();
  return block == layout.first_block(p) || block + 1 == end ||
         mix64(mix64(optimizer, array), block) % sampled_one_in == 0;
}

void BlockReader::judge(std::size_t optimizer, std::size_t array, std::size_t block,
                        const float* values) const
{
  const ManifestEntry& entry = contents_.optimizer(optimizer);
  const std::string& name = entry.arrays[array];
  const FlatLayout::BlockPlace place = contents_.layouts[optimizer].place_of(block);
  const Piece& piece = place.piece->piece;
  const std::size_t count = std::min(block_elements, piece.elements - place.begin);
  const std::size_t bad = first_illegal(name, values, count);
  if (bad == count) return;
  throw IllegalState(fmt::format(
      "checkpoint {} is refused ({} block {}: element {} of parameter '{}' is {}); restore another "
      "one",
      contents_.path.string(), entry.data_path(name), block, piece.global_index(place.begin + bad),
      entry.parameters[place.parameter].name, values[bad]));
}

const float* BlockReader::load(ArrayPlace place, std::span<const std::size_t> blocks, float* into)
{
  if (into == nullptr) {
    buffer_.resize(blocks.size() * block_elements);
    into = buffer_.data();
  }
  hashes_.resize(blocks.size());
  for (std::size_t begin = 0; begin < blocks.size();) {
    std::size_t end = begin + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1) ++end;
    file_.read_at(place.data + blocks[begin] * block_bytes, into + begin * block_elements,
                  (end - begin) * block_bytes);
    if (verify_ != Verify::off)
      file_.read_at(place.hashes + blocks[begin] * sizeof(std::uint64_t), &hashes_[begin],
                    (end - begin) * sizeof(std::uint64_t));
    begin = end;
  }
  return into;
}

void BlockReader::read_own(std::size_t array, std::span<const std::size_t> blocks)
{
  const float* const buffer = load(contents_.place_of_own(array), blocks, nullptr);
  const OwnArrayEntry& entry = contents_.manifest.own_arrays[array];
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool hashed =
        verify_ == Verify::full || (verify_ == Verify::sampled &&
                                    (blocks[i] == 0 || blocks[i] + 1 == entry.blocks ||
                                     mix64(hash_of(entry.name), blocks[i]) % sampled_one_in == 0));
    if (hashed && hash_block(buffer + i * block_elements) != hashes_[i])
      throw CheckpointError(
          fmt::format("checkpoint {} is damaged ({} block {}, of own array '{}', does not have its "
                      "hash); restore another one",
                      contents_.path.string(), entry.data_path(), blocks[i], entry.name));
  }
}

void BlockReader::read(std::size_t optimizer, std::size_t array,
                       std::span<const std::size_t> blocks, float* into)
{
  const float* const buffer = load(contents_.place(optimizer, array), blocks, into);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const float* values = buffer + i * block_elements;
    if (is_hashed(optimizer, array, blocks[i]) && hash_block(values) != hashes_[i]) {
      const ManifestEntry& entry = contents_.optimizer(optimizer);
      const std::size_t p = contents_.layouts[optimizer].parameter_of(blocks[i]);
      throw CheckpointError(
          fmt::format("checkpoint {} is damaged ({} block {}, of parameter '{}', does not have its "
                      "hash); restore another one",
                      contents_.path.string(), entry.data_path(entry.arrays[array]), blocks[i],
                      entry.parameters[p].name));
    }
    judge(optimizer, array, blocks[i], values);
  }
}

void Cut::clear()
{
  copies_.clear();
  blocks_.clear();
}

void Cut::add(std::size_t from, std::size_t to, std::size_t count)
{
  if (!copies_.empty() && copies_.back().from + copies_.back().count == from &&
      copies_.back().to + copies_.back().count == to)
    copies_.back().count += count;
  else
    copies_.push_back({from, to, count});
  for (std::size_t b = from / block_bytes; b <= (from + count - 1) / block_bytes; ++b)
    if (blocks_.empty() || blocks_.back() != b) blocks_.push_back(b);
}

std::span<const std::size_t> Cut::blocks()
{
  std::sort(blocks_.begin(), blocks_.end());
  blocks_.erase(std::unique(blocks_.begin(), blocks_.end()), blocks_.end());
  return blocks_;
}

bool Cut::is_straight()
{
  const std::span<const std::size_t> wanted = blocks();
  std::size_t next = 0;  // of `wanted`
  for (const Copy& copy : copies_) {
    if (copy.from % block_bytes != 0 || copy.to != next * block_bytes || next == wanted.size() ||
        wanted[next] != copy.from / block_bytes)
      return false;
    next += (copy.count + block_bytes - 1) / block_bytes;
  }
  return next == wanted.size();
}

void Cut::take(const std::byte* buffer, void* target) const
{
  for (const Copy& copy : copies_) {
    // A run's blocks are all there and follow each other, in the buffer as in the file.
    const auto at = std::lower_bound(blocks_.begin(), blocks_.end(), copy.from / block_bytes);
    const auto index = static_cast<std::size_t>(at - blocks_.begin());
    std::copy_n(buffer + index * block_bytes + copy.from % block_bytes, copy.count,
                static_cast<std::byte*>(target) + copy.to);
  }
}

void read_own_part(BlockReader& reader, const OwnArrayEntry& entry, std::size_t array,
                   const ArrayPart& wanted, void* data)
{
  const std::size_t width = bytes_of(entry.type);
  Cut cut;
  const auto flush = [&] {
    if (cut.pending() == 0) return;
    reader.read_own(array, cut.blocks());
    cut.take(reader.buffer(), data);
    cut.clear();
  };
  for (const SavedPart& saved : entry.parts) {
    const auto take = [&](std::size_t from, std::size_t to, std::size_t count) {
      constexpr std::size_t most = blocks_at_a_time * block_bytes;
      for (std::size_t done = 0; done < count * width;) {
        const std::size_t bytes = std::min(count * width - done, most);
        cut.add(saved.first_block * block_bytes + from * width + done, to * width + done, bytes);
        if (cut.pending() >= blocks_at_a_time) flush();
        done += bytes;
      }
    };
    for_each_run(saved.part, wanted, take);
  }
  flush();
}

}  // namespace tutti::detail
