// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is trained: names, global shapes, precisions and placements, and how each model-parallel
// slot lays its pieces out in whole blocks. No data lives here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/block.hpp"

namespace tutti {

/// How a parameter lies on the model-parallel axis.
enum class Placement : std::uint8_t {
  replicated,  ///< every slot holds all of it
  split,       ///< cut along `split_axis`; slot m holds indices [n m / M, n (m+1) / M) of that axis
};
/// What the slots' gradients of a replicated parameter are.
enum class ReplicaGradient : std::uint8_t {
  identical,  ///< each slot computed the whole gradient: one is taken
  partial,    ///< each slot computed a part: they are summed in rank order
};

struct ParameterSpec {
  std::string name;
  std::vector<std::size_t> shape;         ///< global, row-major; a scalar has no axes
  Precision precision = Precision::fp32;  ///< of model values and of handed-in gradients
  Placement placement = Placement::replicated;
  int split_axis = 0;
  ReplicaGradient gradient = ReplicaGradient::identical;
  /// Of all slots together.
  std::size_t elements() const;
};

/// An ordered list of parameters; the order is the same on all ranks and gives each its index.
class ParameterSet {
 public:
  /// Returns the new parameter's index. Throws InvalidArgument on an empty or repeated name, a zero
  /// extent, more elements than can be counted, or a split axis that is not there. Not collective.
  std::size_t add(ParameterSpec spec);
  std::size_t size() const { return specs_.size(); }
  const ParameterSpec& operator[](std::size_t index) const { return specs_[index]; }
  /// Throws InvalidArgument if there is none of that name.
  std::size_t index_of(std::string_view name) const;
  /// Order-dependent hash of names, shapes, precisions, placements and kinds of gradient.
  std::uint64_t hash() const;

 private:
  std::vector<ParameterSpec> specs_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// The part of one parameter that one slot holds: an axis-aligned slab of the global array, stored
/// row-major and contiguous, padded with zeros to whole blocks.
struct Piece {
  std::vector<std::size_t> shape;  ///< of the slab
  std::size_t elements = 0;
  std::size_t axis_begin = 0;   ///< first index along the split axis
  std::size_t first_block = 0;  ///< in the slot's layout
  std::size_t blocks = 0;
  std::size_t inner = 1;          ///< elements of one slab row: contiguous in the global array too
  std::size_t global_stride = 1;  ///< distance of two slab rows in the global array
  std::size_t global_begin = 0;   ///< global index of the slab's first element

  /// Global element index of the slab's element i: a slab row of `inner` elements is contiguous in
  /// both.
  std::size_t global_index(std::size_t i) const
  {
    return global_begin + (i / inner) * global_stride + i % inner;
  }
  /// The other way round; `elements` if the slab does not hold it.
  std::size_t local_index(std::size_t global) const
  {
    if (global < global_begin || elements == 0) return elements;
    const std::size_t row = (global - global_begin) / global_stride;
    const std::size_t column = (global - global_begin) % global_stride;
    return column < inner && row * inner + column < elements ? row * inner + column : elements;
  }
};

/// The blocks of one model-parallel slot: its pieces one after the other in parameter order.
class SlotLayout {
 public:
  /// Throws InvalidArgument unless 0 <= slot < model_parallel, and when a slot has 2^32 blocks or
  /// more. A slot that gets no index of a split axis (extent < M) has a piece without elements and
  /// blocks.
  SlotLayout(const ParameterSet& parameters, int model_parallel, int slot);
  const Piece& piece(std::size_t parameter) const { return pieces_[parameter]; }
  std::size_t size() const { return pieces_.size(); }
  std::size_t blocks() const { return parameter_of_block_.size(); }
  std::uint32_t parameter_of(std::size_t block) const { return parameter_of_block_[block]; }
  Precision precision_of(std::size_t block) const { return precision_[parameter_of_block_[block]]; }
  /// Byte offset of a block in a buffer in model precision (each piece starts 64-byte aligned); of
  /// block blocks() it is the total.
  std::size_t byte_offset(std::size_t block) const;
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> parameter_of_block_;
  std::vector<Precision> precision_;
  std::vector<std::size_t> piece_byte_offset_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
