// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where an element of a parameter lies in a checkpoint.
#include "flat_layout.hpp"

#include <algorithm>
#include <cassert>

namespace tutti::detail {

FlatLayout::FlatLayout(const ParameterSet& parameters, int model_parallel)
    : pieces_(parameters.size())
{
  std::vector<SlotLayout> slots;
  for (int m = 0; m < model_parallel; ++m) slots.emplace_back(parameters, model_parallel, m);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const ParameterSpec& spec = parameters[p];
    const bool split = spec.placement == Placement::split;
    std::size_t row = 1;
    for (std::size_t axis = static_cast<std::size_t>(spec.split_axis) + 1;
         split && axis < spec.shape.size(); ++axis)
      row *= spec.shape[axis];
    row_.push_back(row);
    for (std::size_t m = 0; m < (split ? slots.size() : 1); ++m) {
      pieces_[p].push_back({slots[m].piece(p), blocks_});
      blocks_ += pieces_[p].back().piece.blocks;
    }
  }
}

std::size_t FlatLayout::block(std::size_t parameter, int slot, std::size_t block_in_piece) const
{
  const auto& pieces = pieces_[parameter];
  return pieces[pieces.size() == 1 ? 0 : static_cast<std::size_t>(slot)].first_block +
         block_in_piece;
}

std::size_t FlatLayout::parameter_of(std::size_t block) const
{
  // A parameter has at least one element, so first blocks ascend.
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), block,
                       [](std::size_t b, const auto& pieces) { return b < pieces[0].first_block; });
  return static_cast<std::size_t>(after - pieces_.begin()) - 1;
}

FlatLayout::BlockPlace FlatLayout::place_of(std::size_t block) const
{
  const std::size_t parameter = parameter_of(block);
  const auto& pieces = pieces_[parameter];
  // The last piece that begins at or before it: an empty one begins where the next does.
  const auto after =
      std::upper_bound(pieces.begin(), pieces.end(), block,
                       [](std::size_t b, const FlatPiece& piece) { return b < piece.first_block; });
  const FlatPiece& piece = *(after - 1);
  return {parameter, &piece, (block - piece.first_block) * block_elements};
}

FlatLayout::Run FlatLayout::locate(std::size_t parameter, std::size_t index) const
{
  const auto& pieces = pieces_[parameter];
  const Piece& first = pieces[0].piece;
  if (pieces.size() == 1)
    return {pieces[0].first_block * block_elements + index, first.elements - index};

  // A plane is all of the split axis and what lies within: global_stride elements.
  const std::size_t plane = index / first.global_stride;
  const std::size_t in_plane = index % first.global_stride;
  const std::size_t along_axis = in_plane / row_[parameter];
  // The last piece that begins at or before the index: an empty one begins where the next does.
  const auto after = std::upper_bound(
      pieces.begin(), pieces.end(), along_axis,
      [](std::size_t i, const FlatPiece& piece) { return i < piece.piece.axis_begin; });
  const FlatPiece& holder = *(after - 1);
  const std::size_t in_row = in_plane - holder.piece.global_begin;
  assert(in_row < holder.piece.inner);
  return {holder.first_block * block_elements + plane * holder.piece.inner + in_row,
          holder.piece.inner - in_row};
}

}  // namespace tutti::detail
