// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checking parameters as they are declared, and cutting them into the pieces of a slot. Nothing
// here depends on how many ranks hold a slot: that is shard_plan.cpp.
#include "tutti/parameters.hpp"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

// Product of extents [first, last); extents were checked against overflow when they were declared.
std::size_t product(const std::vector<std::size_t>& shape, std::size_t first, std::size_t last)
{
  std::size_t elements = 1;
  for (std::size_t axis = first; axis < last; ++axis) elements *= shape[axis];
  return elements;
}

// floor(extent * part / parts) without the product, which may not fit.
std::size_t cut(std::size_t extent, std::size_t part, std::size_t parts)
{
  return extent / parts * part + extent % parts * part / parts;
}

Piece piece_of(const ParameterSpec& spec, int model_parallel, int slot)
{
  Piece piece;
  piece.shape = spec.shape;
  const std::size_t axes = spec.shape.size();
  if (spec.placement == Placement::replicated) {
    piece.elements = product(spec.shape, 0, axes);
    piece.inner = piece.global_stride = piece.elements;
  } else {
    const std::size_t axis = static_cast<std::size_t>(spec.split_axis);
    const std::size_t parts = static_cast<std::size_t>(model_parallel);
    const std::size_t part = static_cast<std::size_t>(slot);
    const std::size_t row = product(spec.shape, axis + 1, axes);
    piece.axis_begin = cut(spec.shape[axis], part, parts);
    piece.shape[axis] = cut(spec.shape[axis], part + 1, parts) - piece.axis_begin;
    piece.elements = product(piece.shape, 0, axes);
    piece.global_stride = spec.shape[axis] * row;
    piece.global_begin = piece.axis_begin * row;
    if (piece.elements > 0) piece.inner = piece.shape[axis] * row;
  }
  piece.blocks = blocks_of(piece.elements);
  return piece;
}

}  // namespace

std::size_t ParameterSpec::elements() const
{
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::size_t ParameterSet::add(ParameterSpec spec)
{
  if (spec.name.empty()) {
    throw InvalidArgument(fmt::format(
        "parameter {} has no name (names identify parameters in checkpoints); give it one",
        specs_.size()));
  }
  if (index_.contains(spec.name)) {
    throw InvalidArgument(
        fmt::format("parameter '{}' is declared twice (as {} and {}); names must be different",
                    spec.name, index_[spec.name], specs_.size()));
  }
  // Room for padding to whole blocks and for a byte count in the widest format.
  constexpr std::size_t most =
      std::numeric_limits<std::size_t>::max() / sizeof(double) - block_elements;
  std::size_t elements = 1;
  for (std::size_t axis = 0; axis < spec.shape.size(); ++axis) {
    const std::size_t extent = spec.shape[axis];
    if (extent == 0) {
      throw InvalidArgument(fmt::format(
          "parameter '{}' has no elements (axis {} has extent 0); leave it out", spec.name, axis));
    }
    if (extent > most / elements) {
      throw InvalidArgument(fmt::format(
          "parameter '{}' is too large (its elements cannot be counted); check its shape",
          spec.name));
    }
    elements *= extent;
  }
  if (spec.placement == Placement::split &&
      (spec.split_axis < 0 || static_cast<std::size_t>(spec.split_axis) >= spec.shape.size())) {
    throw InvalidArgument(fmt::format(
        "parameter '{}' cannot be split along axis {} (it has {} axes); choose another split axis",
        spec.name, spec.split_axis, spec.shape.size()));
  }
  index_.emplace(spec.name, specs_.size());
  specs_.push_back(std::move(spec));
  return specs_.size() - 1;
}

std::size_t ParameterSet::index_of(std::string_view name) const
{
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) {
    throw InvalidArgument(fmt::format(
        "there is no parameter '{}' (the set has {} others); check the name", name, size()));
  }
  return found->second;
}

std::uint64_t ParameterSet::hash() const
{
  std::uint64_t hash = mix64(specs_.size());
  for (const ParameterSpec& spec : specs_) {
    hash = mix64(hash, hash_of(spec.name));
    hash = mix64(hash, spec.shape.size());
    for (std::size_t extent : spec.shape) hash = mix64(hash, extent);
    hash = mix64(hash, static_cast<std::uint64_t>(spec.precision));
    hash = mix64(hash, static_cast<std::uint64_t>(spec.placement));
    // Only what has a meaning for the placement: an unused field is no difference.
    hash =
        mix64(hash, spec.placement == Placement::split ? static_cast<std::uint64_t>(spec.split_axis)
                                                       : static_cast<std::uint64_t>(spec.gradient));
  }
  return hash;
}

SlotLayout::SlotLayout(const ParameterSet& parameters, int model_parallel, int slot)
{
  if (slot < 0 || slot >= model_parallel) {
    throw InvalidArgument(fmt::format(
        "there is no model-parallel slot {} (the degree is {}); use a slot from 0 to degree - 1",
        slot, model_parallel));
  }
  std::size_t blocks = 0;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    Piece piece = piece_of(parameters[p], model_parallel, slot);
    piece.first_block = blocks;
    piece_byte_offset_.push_back(bytes_);
    precision_.push_back(parameters[p].precision);
    // A block is a multiple of 64 bytes in every precision, so each piece starts aligned.
    static_assert(block_elements * 2 % 64 == 0);
    bytes_ += piece.blocks * block_elements * bytes_of(parameters[p].precision);
    blocks += piece.blocks;
    if (blocks > std::numeric_limits<std::uint32_t>::max()) {
      throw InvalidArgument(fmt::format(
          "model-parallel slot {} is too large (more than {} blocks of {} elements); raise "
          "--model-parallel",
          slot, std::numeric_limits<std::uint32_t>::max(), block_elements));
    }
    pieces_.push_back(std::move(piece));
  }
  parameter_of_block_.reserve(blocks);
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    parameter_of_block_.insert(parameter_of_block_.end(), pieces_[p].blocks,
                               static_cast<std::uint32_t>(p));
  }
}

std::size_t SlotLayout::byte_offset(std::size_t block) const
{
  if (block == blocks()) return bytes_;  // where an empty piece at the end begins
  const std::uint32_t parameter = parameter_of_block_[block];
  return piece_byte_offset_[parameter] + (block - pieces_[parameter].first_block) * block_elements *
                                             bytes_of(precision_[parameter]);
}

}  // namespace tutti
