// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The storage formats of model values and gradients, and their conversions. Arithmetic is always
// done in fp32 or wider; these types are only stored.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tutti {

/// Storage format of an array of model values or gradients.
enum class Precision : std::uint8_t { fp16, bf16, fp32 };

/// Bytes of one element.
constexpr std::size_t bytes_of(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }

/// "fp16", "bf16" or "fp32".
constexpr std::string_view name_of(Precision precision)
{
  return precision == Precision::fp16 ? "fp16" : precision == Precision::bf16 ? "bf16" : "fp32";
}

/// The precision with that name, or nothing.
constexpr std::optional<Precision> precision_named(std::string_view name)
{
  for (Precision precision : {Precision::fp16, Precision::bf16, Precision::fp32})
    if (name == name_of(precision)) return precision;
  return std::nullopt;
}

}  // namespace tutti
