// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Parts of a code's own arrays: any partition is accepted and any other refused, and whatever the
// two partitions are, each wanted element comes from exactly the right place.
#include "own_layout.hpp"

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "catch.hpp"
#include "format.hpp"
#include "tutti/error.hpp"

using namespace tutti;
using namespace tutti::detail;

namespace {

/// Cuts the array into at most `parts` boxes at random places.
std::vector<SavedPart> random_partition(const std::vector<std::size_t>& shape, int parts,
                                        std::mt19937& random)
{
  std::vector<ArrayPart> boxes = {{std::vector<std::size_t>(shape.size(), 0), shape}};
  for (int cut = 1; cut < parts && !shape.empty(); ++cut) {
    ArrayPart& box = boxes[random() % boxes.size()];
    const std::size_t axis = random() % shape.size();
    const std::size_t left = random() % (box.extent[axis] + 1);
    ArrayPart rest = box;
    box.extent[axis] = left;
    rest.begin[axis] += left;
    rest.extent[axis] -= left;
    boxes.push_back(rest);
  }
  std::vector<SavedPart> saved;
  for (std::size_t i = 0; i < boxes.size(); ++i)
    if (boxes[i].elements() > 0) saved.push_back({static_cast<int>(i), boxes[i], 0});
  return saved;
}

/// Row-major index in the whole array of each element of a part.
std::vector<std::size_t> global_indices(const ArrayPart& part,
                                        const std::vector<std::size_t>& shape)
{
  std::vector<std::size_t> out;
  for (std::size_t e = 0; e < part.elements(); ++e) {
    std::size_t rest = e;
    std::size_t index = 0;
    std::size_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      index += (part.begin[axis] + rest % part.extent[axis]) * stride;
      rest /= part.extent[axis];
      stride *= shape[axis];
    }
    out.push_back(index);
  }
  return out;
}

const std::vector<std::vector<std::size_t>> shapes = {{},        {1},       {17},        {4, 5},
                                                      {1, 9, 1}, {3, 4, 5}, {2, 3, 2, 4}};

}  // namespace

TEST_CASE("each element of any part comes from the one saved part that holds it")
{
  std::mt19937 random(5);
  for (const auto& shape : shapes)
    for (int repeat = 0; repeat < 60; ++repeat) {
      const auto saved = random_partition(shape, 1 + repeat % 7, random);
      const auto wanted = random_partition(shape, 1 + repeat % 5, random);
      for (const SavedPart& want : wanted) {
        const auto expected = global_indices(want.part, shape);
        std::vector<int> hits(expected.size(), 0);
        for (const SavedPart& have : saved) {
          const auto there = global_indices(have.part, shape);
          std::size_t last = 0;
          for_each_run(have.part, want.part,
                       [&](std::size_t from, std::size_t to, std::size_t count) {
                         REQUIRE(from >= last);
                         last = from + count;
                         for (std::size_t i = 0; i < count; ++i) {
                           REQUIRE(there.at(from + i) == expected.at(to + i));
                           ++hits.at(to + i);
                         }
                       });
        }
        REQUIRE(hits == std::vector<int>(hits.size(), 1));
      }
    }
}

TEST_CASE("a part that is whole in both is one run")
{
  int runs = 0;
  const ArrayPart saved{{2, 0, 0}, {3, 4, 5}}, wanted{{1, 0, 0}, {3, 4, 5}};
  for_each_run(saved, wanted, [&](std::size_t from, std::size_t to, std::size_t count) {
    ++runs;
    REQUIRE(from == 0);
    REQUIRE(to == 20);
    REQUIRE(count == 40);
  });
  REQUIRE(runs == 1);
}

TEST_CASE("every partition is accepted; a gap and an overlap are refused by name")
{
  std::mt19937 random(6);
  for (const auto& shape : shapes)
    for (int repeat = 0; repeat < 40; ++repeat) {
      OwnArrayEntry array{"field", ElementType::float64, shape, "", 0, {}};
      array.parts = random_partition(shape, 1 + repeat % 6, random);
      REQUIRE_NOTHROW(require_partition(array));

      auto gap = array;
      gap.parts.erase(gap.parts.begin() + static_cast<std::ptrdiff_t>(random() % gap.parts.size()));
      REQUIRE_THROWS_AS(require_partition(gap), InvalidArgument);

      auto twice = array;
      twice.parts.push_back(twice.parts[random() % twice.parts.size()]);
      twice.parts.back().rank = 99;
      REQUIRE_THROWS_WITH(require_partition(twice), tutti::test::has_text("and 99 overlap") &&
                                                        tutti::test::has_text("'field'"));

      // As many elements as the whole, but one part is there twice and another is missing.
      if (array.parts.size() < 2) continue;
      auto shifted = array;
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        ArrayPart& part = shifted.parts[0].part;
        if (part.extent[axis] == shape[axis]) continue;
        part.begin[axis] = part.begin[axis] > 0 ? part.begin[axis] - 1 : 1;
        if (part.begin[axis] + part.extent[axis] > shape[axis]) continue;
        REQUIRE_THROWS_AS(require_partition(shifted), InvalidArgument);
        break;
      }
    }
}

TEST_CASE("what a partition costs does not grow with the array")
{
  // A list of 2^50 indices would be 8 PiB.
  const std::size_t n = std::size_t{1} << 50;
  OwnArrayEntry array{"field", ElementType::uint8, {n}, "", 0, {}};
  array.parts = {{0, {{0}, {n / 2 + 1}}, 0}, {1, {{n / 2 + 1}, {n / 2 - 1}}, 0}};
  REQUIRE_NOTHROW(require_partition(array));
  array.parts[1].part = {{n / 2}, {n / 2}};
  REQUIRE_THROWS_WITH(require_partition(array), tutti::test::has_text("ranks 0 and 1 overlap"));
  array.parts[1].part = {{n / 2 + 2}, {n / 2 - 2}};
  REQUIRE_THROWS_WITH(require_partition(array), tutti::test::has_text("elements"));
}

TEST_CASE("a manifest with parts that no array has is refused")
{
  Manifest manifest;
  manifest.ranks = 2;
  manifest.model_parallel = 1;
  manifest.own_arrays.push_back({"field", ElementType::float64, {8}, "", 2, {}});
  manifest.own_arrays[0].parts = {{0, {{0}, {5}}, 0}, {1, {{5}, {3}}, 1}};
  assign_paths(manifest);
  const nlohmann::json good = nlohmann::json::parse(to_json(manifest));
  REQUIRE_NOTHROW(manifest_from_json(good.dump()));
  const auto refused = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed.at(nlohmann::json::json_pointer(pointer)) = value;
    INFO(pointer << " = " << value);
    REQUIRE_THROWS_AS(manifest_from_json(changed.dump()), CheckpointError);
  };
  const std::uint64_t far = std::uint64_t{1} << 40;
  refused("/own_arrays/0/parts/1/begin", {far});
  refused("/own_arrays/0/parts/1/begin", {-1});
  refused("/own_arrays/0/parts/1/begin", {5, 0});
  refused("/own_arrays/0/parts/1/extent", {4});
  refused("/own_arrays/0/parts/1/first_block", 2);
  refused("/own_arrays/0/shape", {std::uint64_t{1} << 62});
  refused("/own_arrays/0/shape", nlohmann::json::array());
  refused("/own_arrays/0/shape", std::vector<std::uint64_t>(40, 8));
  refused("/own_arrays/0/blocks", 3);
  refused("/model_parallel", 2000000000);
  refused("/model_parallel", 0);
  refused("/ranks", 0);
}

TEST_CASE("a part takes whole blocks of 16 KiB")
{
  const auto blocks = [](std::size_t elements, ElementType type) {
    return own_blocks({{0}, {elements}}, type);
  };
  REQUIRE(blocks(0, ElementType::float64) == 0);
  REQUIRE(blocks(1, ElementType::uint8) == 1);
  REQUIRE(blocks(2048, ElementType::float64) == 1);
  REQUIRE(blocks(2049, ElementType::float64) == 2);
  REQUIRE(blocks(4097, ElementType::int32) == 2);
}

TEST_CASE("what cannot be an own array is refused when it is added")
{
  OwnArrays own;
  double value = 0;
  own.add("b", &value, {4}, {{3}, {1}});
  own.add_scalar("a", &value);
  REQUIRE_THROWS_AS(own.add("a", &value, {4}, {{0}, {1}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add_scalar("b", &value), InvalidArgument);
  REQUIRE_THROWS_AS(own.add("", &value, {4}, {{0}, {1}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add("c", &value, {4}, {{4}, {1}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add("c", &value, {4}, {{~std::size_t{0}}, {2}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add("c", &value, {4, 4}, {{0}, {1}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add("c", &value, {0}, {{0}, {0}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add("c", static_cast<double*>(nullptr), {4}, {{0}, {1}}), InvalidArgument);
  REQUIRE_THROWS_AS(own.add_scalar("c", static_cast<double*>(nullptr)), InvalidArgument);
  own.add("c", static_cast<float*>(nullptr), {4}, {{4}, {0}});  // nothing here
  REQUIRE(own.arrays().size() == 2);
  REQUIRE(own.arrays()[0].name == "b");
  REQUIRE(own.arrays()[1].type == ElementType::float32);
}
