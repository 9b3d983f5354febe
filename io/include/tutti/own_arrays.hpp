// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A code's own distributed arrays and scalars (a field, a mesh, a time) that go into the same
// checkpoint as its optimizers, under the same certificate. They are registered once and serve
// both ways: a save reads from them, a restore writes to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tutti {

enum class ElementType : std::uint8_t { uint8, int32, uint32, int64, uint64, float32, float64 };
std::string_view name_of(ElementType type);
std::optional<ElementType> element_type_named(std::string_view name);
std::size_t bytes_of(ElementType type);

template <class T>
constexpr ElementType element_type_of()
{
  if constexpr (std::is_same_v<T, float>)
    return ElementType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return ElementType::float64;
  else {
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>,
                  "own arrays hold float, double or integers of 1 (unsigned), 4 or 8 bytes");
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || (sizeof(T) == 1 && std::is_unsigned_v<T>),
                  "own arrays hold float, double or integers of 1 (unsigned), 4 or 8 bytes");
    if constexpr (sizeof(T) == 1)
      return ElementType::uint8;
    else if constexpr (sizeof(T) == 4)
      return std::is_signed_v<T> ? ElementType::int32 : ElementType::uint32;
    else
      return std::is_signed_v<T> ? ElementType::int64 : ElementType::uint64;
  }
}

/// A rank's part of a global array: indices [begin, begin + extent) along each axis. An extent of 0
/// is a part without elements.
struct ArrayPart {
  std::vector<std::size_t> begin, extent;
  std::size_t elements() const;
  bool operator==(const ArrayPart&) const = default;
};

class OwnArrays {
 public:
  /// This rank's part of a global array of `shape`, row-major and contiguous in host memory, which
  /// must outlive the saves and restores that use it. All ranks add the same names with the same
  /// type and shape, in any order; over all ranks every element lies in exactly one part (a save
  /// checks that). A restore may have other parts on another number of ranks, and they may overlap:
  /// each rank gets what it asks for. Throws InvalidArgument on an empty or repeated name, an axis
  /// of extent 0, a part that leaves the array, or a null pointer with elements. Not collective.
  void add(std::string name, ElementType type, void* data, std::vector<std::size_t> shape,
           ArrayPart part);
  template <class T>
  void add(std::string name, T* data, std::vector<std::size_t> shape, ArrayPart part)
  {
    add(std::move(name), element_type_of<T>(), data, std::move(shape), std::move(part));
  }
  /// One value that is equal on all ranks: a save refuses it otherwise, a restore sets it on all.
  void add_scalar(std::string name, ElementType type, void* value);
  template <class T>
  void add_scalar(std::string name, T* value)
  {
    add_scalar(std::move(name), element_type_of<T>(), value);
  }
  /// Forgets the array or scalar of that name; nothing if there is none.
  void remove(std::string_view name);

  struct Array {
    std::string name;
    ElementType type = ElementType::float64;
    void* data = nullptr;
    std::vector<std::size_t> shape;
    ArrayPart part;
  };
  struct Scalar {
    std::string name;
    ElementType type = ElementType::float64;
    void* value = nullptr;
  };
  const std::vector<Array>& arrays() const { return arrays_; }     ///< in order of their names
  const std::vector<Scalar>& scalars() const { return scalars_; }  ///< in order of their names
  bool empty() const { return arrays_.empty() && scalars_.empty(); }

 private:
  void require_new(const std::string& name) const;
  std::vector<Array> arrays_;
  std::vector<Scalar> scalars_;
};

}  // namespace tutti
