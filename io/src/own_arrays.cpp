// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/own_arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "own_layout.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

struct TypeFacts {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<TypeFacts, 7> types = {{{"uint8", 1},
                                             {"int32", 4},
                                             {"uint32", 4},
                                             {"int64", 8},
                                             {"uint64", 8},
                                             {"float32", 4},
                                             {"float64", 8}}};

template <class Entry>
void insert_by_name(std::vector<Entry>& entries, Entry entry)
{
  const auto at =
      std::lower_bound(entries.begin(), entries.end(), entry.name,
                       [](const Entry& e, const std::string& name) { return e.name < name; });
  entries.insert(at, std::move(entry));
}

}  // namespace

std::string_view name_of(ElementType type) { return types[static_cast<std::size_t>(type)].name; }
std::optional<ElementType> element_type_named(std::string_view name)
{
  for (std::size_t i = 0; i < types.size(); ++i)
    if (types[i].name == name) return static_cast<ElementType>(i);
  return std::nullopt;
}
std::size_t bytes_of(ElementType type) { return types[static_cast<std::size_t>(type)].bytes; }

std::size_t ArrayPart::elements() const
{
  std::size_t product = 1;
  for (const std::size_t e : extent) product *= e;
  return product;
}

void OwnArrays::require_new(const std::string& name) const
{
  const auto same = [&](const auto& entry) { return entry.name == name; };
  if (name.empty()) throw InvalidArgument("an own array has no name; give it one");
  if (std::any_of(arrays_.begin(), arrays_.end(), same) ||
      std::any_of(scalars_.begin(), scalars_.end(), same))
    throw InvalidArgument(
        fmt::format("own array '{}' is there already (names identify them); rename one", name));
}

void OwnArrays::add(std::string name, ElementType type, void* data, std::vector<std::size_t> shape,
                    ArrayPart part)
{
  require_new(name);
  detail::require_part_of(name, shape, part);
  if (data == nullptr && part.elements() > 0)
    throw InvalidArgument(fmt::format(
        "own array '{}' is refused (its data is a null pointer); give memory for {} elements", name,
        part.elements()));
  insert_by_name(arrays_, Array{std::move(name), type, data, std::move(shape), std::move(part)});
}

void OwnArrays::add_scalar(std::string name, ElementType type, void* value)
{
  require_new(name);
  if (value == nullptr)
    throw InvalidArgument(
        fmt::format("own scalar '{}' is refused (its value is a null pointer)", name));
  insert_by_name(scalars_, Scalar{std::move(name), type, value});
}

void OwnArrays::remove(std::string_view name)
{
  const auto same = [&](const auto& entry) { return entry.name == name; };
  std::erase_if(arrays_, same);
  std::erase_if(scalars_, same);
}

}  // namespace tutti
