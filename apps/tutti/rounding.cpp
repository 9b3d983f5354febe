// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Loops over the element conversions of tutti/half.hpp.
#include "rounding.hpp"

#include <cstdint>
#include <cstring>
#include <memory>

#include "tutti/half.hpp"

namespace tutti::apps {
namespace {

/// All 65,536 halves as fp32: a table is faster than the branches of the conversion, and equal to
/// it.
const float* half_table()
{
  static const std::unique_ptr<const float[]> table = [] {
    auto values = std::make_unique<float[]>(65536);
    for (std::uint32_t bits = 0; bits < 65536; ++bits)
      values[bits] = float_from_half(Half{static_cast<std::uint16_t>(bits)});
    return std::unique_ptr<const float[]>(std::move(values));
  }();
  return table.get();
}

}  // namespace

void to_fp32(float* to, const void* values, Precision precision, std::size_t count)
{
  const auto* bits = static_cast<const std::uint16_t*>(values);
  switch (precision) {
    case Precision::fp16: {
      const float* table = half_table();
      for (std::size_t i = 0; i < count; ++i) to[i] = table[bits[i]];
      break;
    }
    case Precision::bf16:
      for (std::size_t i = 0; i < count; ++i) to[i] = float_from_bfloat16(BFloat16{bits[i]});
      break;
    case Precision::fp32:
      if (count > 0) std::memcpy(to, values, count * sizeof(float));
      break;
  }
}

void from_fp32(void* to, Precision precision, const float* values, std::size_t count)
{
  auto* bits = static_cast<std::uint16_t*>(to);
  switch (precision) {
    case Precision::fp16:
      for (std::size_t i = 0; i < count; ++i) bits[i] = half_from_float(values[i]).bits;
      break;
    case Precision::bf16:
      for (std::size_t i = 0; i < count; ++i) bits[i] = bfloat16_from_float(values[i]).bits;
      break;
    case Precision::fp32:
      if (count > 0) std::memcpy(to, values, count * sizeof(float));
      break;
  }
}

void round_to(Precision precision, float* values, std::size_t count)
{
  switch (precision) {
    case Precision::fp16: {
      const float* table = half_table();
      for (std::size_t i = 0; i < count; ++i) values[i] = table[half_from_float(values[i]).bits];
      break;
    }
    case Precision::bf16:
      for (std::size_t i = 0; i < count; ++i)
        values[i] = float_from_bfloat16(bfloat16_from_float(values[i]));
      break;
    case Precision::fp32:
      break;
  }
}

}  // namespace tutti::apps
