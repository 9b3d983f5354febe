// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "own_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

bool overlap(const ArrayPart& a, const ArrayPart& b)
{
  for (std::size_t axis = 0; axis < a.begin.size(); ++axis)
    if (a.begin[axis] >= b.begin[axis] + b.extent[axis] ||
        b.begin[axis] >= a.begin[axis] + a.extent[axis])
      return false;
  return true;
}

/// Every index of every axis gets a random weight and an element the product of its indices'. The
/// weights of a box sum up to a product of differences of prefix sums, so the parts can be compared
/// with the whole without looking at elements: equal sums mean, up to a chance of about 2^-60, that
/// every element is in exactly one part.
class Weights {
 public:
  explicit Weights(const std::vector<std::size_t>& shape)
  {
    std::mt19937_64 random(0x7475747469);  // fixed: every run comes to the same judgement
    for (const std::size_t extent : shape) {
      auto& sums = sums_.emplace_back(1, 0);
      for (std::size_t i = 0; i < extent; ++i) sums.push_back(sums.back() + (random() | 1));
    }
  }
  std::uint64_t of(const ArrayPart& box) const
  {
    std::uint64_t product = 1;
    for (std::size_t axis = 0; axis < sums_.size(); ++axis)
      product *= sums_[axis][box.begin[axis] + box.extent[axis]] - sums_[axis][box.begin[axis]];
    return product;
  }

 private:
  std::vector<std::vector<std::uint64_t>> sums_;
};

}  // namespace

std::size_t own_blocks(const ArrayPart& part, ElementType type)
{
  return (part.elements() * bytes_of(type) + block_bytes - 1) / block_bytes;
}

void require_partition(const OwnArrayEntry& array)
{
  const ArrayPart whole{std::vector<std::size_t>(array.shape.size(), 0), array.shape};
  const Weights weights(array.shape);
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
