// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Declaring parameters and cutting them into pieces. Who owns the blocks is shard_plan.cpp.
#include "tutti/parameters.hpp"

#include <string>
#include <vector>

#include "catch.hpp"
#include "tutti/error.hpp"

using namespace tutti;

namespace {

std::string message_of(ParameterSet parameters, ParameterSpec spec)
{
  try {
    parameters.add(std::move(spec));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("parameters keep their order and are found by name")
{
  ParameterSet parameters;
  CHECK(parameters.add({.name = "embed", .shape = {10, 4}}) == 0);
  CHECK(parameters.add({.name = "scalar", .shape = {}}) == 1);
  CHECK(parameters.size() == 2);
  CHECK(parameters.index_of("scalar") == 1);
  CHECK_THROWS_AS(parameters.index_of("bias"), InvalidArgument);
}

TEST_CASE("an unusable parameter is refused by name and leaves the set as it was")
{
  ParameterSet parameters;
  parameters.add({.name = "w", .shape = {3}});
  const std::uint64_t before = parameters.hash();
  CHECK(message_of(parameters, {.name = "", .shape = {1}}).find("has no name") !=
        std::string::npos);
  CHECK(message_of(parameters, {.name = "w", .shape = {1}}).find("'w' is declared twice") !=
        std::string::npos);
  CHECK(message_of(parameters, {.name = "z", .shape = {2, 0}}).find("axis 1 has extent 0") !=
        std::string::npos);
  CHECK(message_of(parameters, {.name = "z", .shape = {std::size_t{1} << 33, std::size_t{1} << 33}})
            .find("cannot be counted") != std::string::npos);
  for (int axis : {-1, 2}) {
    CHECK(message_of(
              parameters,
              {.name = "z", .shape = {2, 2}, .placement = Placement::split, .split_axis = axis})
              .find("cannot be split along axis") != std::string::npos);
  }
  CHECK_THROWS_AS(parameters.add({.name = "w", .shape = {1}}), InvalidArgument);
  CHECK(parameters.size() == 1);
  CHECK(parameters.hash() == before);
}

TEST_CASE("the hash of a parameter set changes with anything that changes its meaning")
{
  const ParameterSpec base{.name = "w", .shape = {6, 4}};
  const auto hash_of_one = [](const ParameterSpec& spec) {
    ParameterSet parameters;
    parameters.add(spec);
    return parameters.hash();
  };
  std::vector<ParameterSpec> variants(9, base);
  variants[1].name = "v";
  variants[2].shape = {4, 6};
  variants[3].shape = {24};
  variants[4].precision = Precision::bf16;
  variants[5].placement = Placement::split;
  variants[6].placement = Placement::split;
  variants[6].split_axis = 1;
  variants[7].gradient = ReplicaGradient::partial;
  variants[8].precision = Precision::fp16;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      INFO("variants " << i << " and " << j);
      CHECK(hash_of_one(variants[i]) != hash_of_one(variants[j]));
    }
  }
  // The split axis of what is not split, and the replicas' gradient of what has none, mean nothing.
  ParameterSpec idle = base;
  idle.split_axis = 1;
  CHECK(hash_of_one(idle) == hash_of_one(base));

  ParameterSet ab, ba;
  ab.add({.name = "a", .shape = {1}});
  ab.add({.name = "b", .shape = {1}});
  ba.add({.name = "b", .shape = {1}});
  ba.add({.name = "a", .shape = {1}});
  CHECK(ab.hash() != ba.hash());
}

TEST_CASE("the pieces of a split parameter cover every element exactly once")
{
  const std::vector<std::size_t> shape{5, 7, 3};
  for (int axis = 0; axis < 3; ++axis) {
    for (int degree = 1; degree <= 8; ++degree) {
      INFO("axis " << axis << ", degree " << degree);
      ParameterSet parameters;
      parameters.add(
          {.name = "w", .shape = shape, .placement = Placement::split, .split_axis = axis});
      std::vector<int> seen(5 * 7 * 3, 0);
      for (int slot = 0; slot < degree; ++slot) {
        const SlotLayout layout(parameters, degree, slot);
        const Piece& piece = layout.piece(0);
        std::size_t elements = 1;
        for (std::size_t extent : piece.shape) elements *= extent;
        CHECK(piece.elements == elements);
        CHECK(layout.blocks() == (elements + block_elements - 1) / block_elements);
        CHECK(piece.axis_begin == shape[axis] * slot / degree);
        for (std::size_t i = 0; i < piece.elements; ++i) {
          // The same element by its coordinates: row-major in the slab, shifted along the axis.
          std::size_t rest = i, at[3];
          for (int a = 2; a >= 0; --a) {
            at[a] = rest % piece.shape[a];
            rest /= piece.shape[a];
          }
          at[axis] += piece.axis_begin;
          const std::size_t global = (at[0] * shape[1] + at[1]) * shape[2] + at[2];
          REQUIRE(piece.global_index(i) == global);
          ++seen[global];
        }
      }
      CHECK(seen == std::vector<int>(seen.size(), 1));
    }
  }
}

TEST_CASE("a replicated parameter and a scalar are whole in every slot")
{
  ParameterSet parameters;
  parameters.add({.name = "norm", .shape = {3, 5000}});
  parameters.add({.name = "scalar", .shape = {}});
  for (int slot = 0; slot < 3; ++slot) {
    const SlotLayout layout(parameters, 3, slot);
    CHECK(layout.piece(0).elements == 15000);
    CHECK(layout.piece(0).global_index(14999) == 14999);
    CHECK(layout.piece(1).elements == 1);
    CHECK(layout.piece(1).first_block == 4);
    CHECK(layout.blocks() == 5);
  }
  CHECK_THROWS_AS(SlotLayout(parameters, 3, 3), InvalidArgument);
  CHECK_THROWS_AS(SlotLayout(parameters, 3, -1), InvalidArgument);
}

TEST_CASE("blocks of mixed precision lie one after the other and aligned")
{
  ParameterSet parameters;
  parameters.add({.name = "a", .shape = {4097}, .precision = Precision::fp16});
  parameters.add({.name = "b", .shape = {1}, .precision = Precision::fp32});
  parameters.add({.name = "c", .shape = {8192}, .precision = Precision::bf16});
  const SlotLayout layout(parameters, 1, 0);
  REQUIRE(layout.blocks() == 5);
  std::size_t offset = 0;
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    CHECK(layout.byte_offset(block) == offset);
    CHECK(offset % 64 == 0);
    offset += block_elements * bytes_of(layout.precision_of(block));
  }
  CHECK(layout.bytes() == offset);
  CHECK(layout.parameter_of(1) == 0);
  CHECK(layout.parameter_of(2) == 1);
  CHECK(layout.parameter_of(3) == 2);
}

TEST_CASE("a slot without an index of the split axis has no blocks of that parameter")
{
  ParameterSet parameters;
  parameters.add({.name = "w", .shape = {2, 9000}, .placement = Placement::split});
  parameters.add({.name = "n", .shape = {1}});
  const SlotLayout empty(parameters, 4, 0);  // rows [0, 0)
  CHECK(empty.piece(0).elements == 0);
  CHECK(empty.piece(0).blocks == 0);
  CHECK(empty.blocks() == 1);
  CHECK(empty.parameter_of(0) == 1);
  CHECK(SlotLayout(parameters, 4, 1).piece(0).elements == 9000);  // row [0, 1)
}
