// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "own_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t most_axes = 32;  // of an HDF5 dataset

bool overlap(const ArrayPart& a, const ArrayPart& b)
{
  for (std::size_t axis = 0; axis < a.begin.size(); ++axis)
    if (a.begin[axis] >= b.begin[axis] + b.extent[axis] ||
        b.begin[axis] >= a.begin[axis] + a.extent[axis])
      return false;
  return true;
}

/// Along each axis, the intervals between neighbouring ends of parts get a random weight each, and
/// a box of such intervals the product of theirs. The weights of a part sum up to a product of
/// differences of prefix sums, so the parts can be compared with the whole without looking at
/// elements: equal sums mean, up to a chance of about 2^-60, that every element is in exactly one
/// part. What it costs grows with the parts, not with the array.
class Weights {
 public:
  explicit Weights(const OwnArrayEntry& array)
  {
    std::mt19937_64 random(0x7475747469);  // fixed: every run comes to the same judgement
    for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
      Axis& a = axes_.emplace_back();
      a.cuts = {0, array.shape[axis]};
      for (const SavedPart& saved : array.parts) {
        a.cuts.push_back(saved.part.begin[axis]);
        a.cuts.push_back(saved.part.begin[axis] + saved.part.extent[axis]);
      }
      std::sort(a.cuts.begin(), a.cuts.end());
      a.cuts.erase(std::unique(a.cuts.begin(), a.cuts.end()), a.cuts.end());
      a.sums.push_back(0);
      while (a.sums.size() < a.cuts.size()) a.sums.push_back(a.sums.back() + (random() | 1));
    }
  }
  std::uint64_t of(const ArrayPart& part) const
  {
    std::uint64_t product = 1;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis)
      product *= axes_[axis].up_to(part.begin[axis] + part.extent[axis]) -
                 axes_[axis].up_to(part.begin[axis]);
    return product;
  }

 private:
  struct Axis {
    std::vector<std::size_t> cuts;    ///< ascending, from 0 to the extent
    std::vector<std::uint64_t> sums;  ///< of the weights of all intervals below each cut
    std::uint64_t up_to(std::size_t cut) const
    {
      const auto at = std::lower_bound(cuts.begin(), cuts.end(), cut);
      return sums[static_cast<std::size_t>(at - cuts.begin())];
    }
  };
  std::vector<Axis> axes_;
};

}  // namespace

std::size_t own_blocks(const ArrayPart& part, ElementType type)
{
  return (part.elements() * bytes_of(type) + block_bytes - 1) / block_bytes;
}

void require_part_of(const std::string& name, const std::vector<std::size_t>& shape,
                     const ArrayPart& part)
{
  if (shape.size() > most_axes || part.begin.size() != shape.size() ||
      part.extent.size() != shape.size())
    throw InvalidArgument(fmt::format(
        "own array '{}' is refused ({} axes, and a part of {} begins and {} extents); give as many "
        "of each, at most {}",
        name, shape.size(), part.begin.size(), part.extent.size(), most_axes));
  std::size_t left = std::size_t{1} << 56;  // no number of bytes or blocks wraps around
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0 || part.extent[axis] > shape[axis] ||
        part.begin[axis] > shape[axis] - part.extent[axis])
      throw InvalidArgument(fmt::format(
          "own array '{}' is refused (axis {} has extent {}, and the part there is [{}, {})); give "
          "a part within the array",
          name, axis, shape[axis], part.begin[axis], part.begin[axis] + part.extent[axis]));
    left /= shape[axis];
  }
  if (left == 0)
    throw InvalidArgument(fmt::format(
        "own array '{}' is refused (its extents multiply to more than 2^56); give the array's real "
        "shape",
        name));
}

void require_partition(const OwnArrayEntry& array)
{
  const ArrayPart whole{std::vector<std::size_t>(array.shape.size(), 0), array.shape};
  const Weights weights(array);
  std::uint64_t weight = 0;
  std::size_t elements = 0;
  for (const SavedPart& saved : array.parts) {
    weight += weights.of(saved.part);
    elements += saved.part.elements();
  }
  if (weight == weights.of(whole) && elements == whole.elements()) return;

  for (std::size_t a = 0; a < array.parts.size(); ++a)
    for (std::size_t b = a + 1; b < array.parts.size(); ++b)
      if (overlap(array.parts[a].part, array.parts[b].part))
        throw InvalidArgument(fmt::format(
            "own array '{}' cannot be saved (the parts of ranks {} and {} overlap); give every "
            "element to one rank, and what is equal on all to add_scalar",
            array.name, array.parts[a].rank, array.parts[b].rank));
  throw InvalidArgument(fmt::format(
      "own array '{}' cannot be saved (its parts hold {} of {} elements); give every element to "
      "one rank",
      array.name, elements, whole.elements()));
}

void for_each_run(const ArrayPart& saved, const ArrayPart& wanted,
                  const std::function<void(std::size_t, std::size_t, std::size_t)>& run)
{
  const std::size_t axes = saved.begin.size();
  std::vector<std::size_t> begin(axes), end(axes);
  for (std::size_t axis = 0; axis < axes; ++axis) {
    begin[axis] = std::max(saved.begin[axis], wanted.begin[axis]);
    end[axis] =
        std::min(saved.begin[axis] + saved.extent[axis], wanted.begin[axis] + wanted.extent[axis]);
    if (begin[axis] >= end[axis]) return;
  }
  // A run spans the last axes that both parts hold whole, and the part they share of the one
  // before.
  std::size_t outer = axes;
  std::size_t count = 1;
  while (outer > 0) {
    --outer;
    count *= end[outer] - begin[outer];
    if (end[outer] - begin[outer] != saved.extent[outer] ||
        saved.extent[outer] != wanted.extent[outer])
      break;
  }
  const auto element_of = [&](const ArrayPart& part, const std::vector<std::size_t>& at) {
    std::size_t element = 0;
    for (std::size_t axis = 0; axis < axes; ++axis)
      element = element * part.extent[axis] + (at[axis] - part.begin[axis]);
    return element;
  };
  std::vector<std::size_t> at = begin;
  while (true) {
    run(element_of(saved, at), element_of(wanted, at), count);
    std::size_t axis = outer;
    while (axis > 0) {
      --axis;
      if (++at[axis] < end[axis]) break;
      at[axis] = begin[axis];
      if (axis == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace tutti::detail
