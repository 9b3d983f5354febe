// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The flat block space of one optimizer in a checkpoint: parameters one after the other, within a
// split parameter the pieces of slot 0, 1, ..., each padded to whole blocks. A pure function of the
// parameters and the model-parallel degree that saved.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tutti/parameters.hpp"

namespace tutti::detail {

class FlatLayout {
 public:
  FlatLayout(const ParameterSet& parameters, int model_parallel);

  struct FlatPiece {
    Piece piece;                  ///< as its slot has it
    std::size_t first_block = 0;  ///< in the flat space
  };
  /// The pieces of a parameter: one a slot if it is split, one in all if it is replicated.
  const std::vector<FlatPiece>& pieces(std::size_t parameter) const { return pieces_[parameter]; }
  std::size_t parameters() const { return pieces_.size(); }
  std::size_t blocks() const { return blocks_; }
  std::size_t first_block(std::size_t parameter) const { return pieces_[parameter][0].first_block; }

  /// Block `block_in_piece` of the piece that `slot` holds.
  std::size_t block(std::size_t parameter, int slot, std::size_t block_in_piece) const;
  std::size_t parameter_of(std::size_t block) const;

  /// What a block holds.
  struct BlockPlace {
    std::size_t parameter = 0;
    const FlatPiece* piece = nullptr;
    std::size_t begin = 0;  ///< of the block's first element in the piece
  };
  BlockPlace place_of(std::size_t block) const;

  /// Global element `index` and those after it that lie one after the other here too.
  struct Run {
    std::size_t element = 0;  ///< in the flat space
    std::size_t count = 0;    ///< at least 1
  };
  Run locate(std::size_t parameter, std::size_t index) const;

 private:
  std::vector<std::vector<FlatPiece>> pieces_;
  std::vector<std::size_t> row_;  ///< elements of one index of the split axis, by parameter
  std::size_t blocks_ = 0;
};

}  // namespace tutti::detail
