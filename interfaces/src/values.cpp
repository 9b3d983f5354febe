// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies with conversion: equal types byte for byte, others through fp32, element by element;
// device memory through a buffer on the host.
#include "values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tutti/error.hpp"
#include "tutti/half.hpp"

namespace tutti::c {
namespace {

float load(Half value) { return float_from_half(value); }
float load(BFloat16 value) { return float_from_bfloat16(value); }
float load(float value) { return value; }
float load(double value) { return static_cast<float>(value); }
void store(Half& to, float value) { to = half_from_float(value); }
void store(BFloat16& to, float value) { to = bfloat16_from_float(value); }
void store(float& to, float value) { to = value; }
void store(double& to, float value) { to = value; }

/// Calls `work` with a null pointer of the element type.
template <class Work>
void with_type(tutti_type type, Work&& work)
{
  switch (type) {
    case TUTTI_FP16:
      return work(static_cast<Half*>(nullptr));
    case TUTTI_BF16:
      return work(static_cast<BFloat16*>(nullptr));
    case TUTTI_FP32:
      return work(static_cast<float*>(nullptr));
    case TUTTI_FP64:
      return work(static_cast<double*>(nullptr));
    default:
      return;  // integers: check_values() has refused them
  }
}

void convert(void* to, tutti_type to_type, const void* from, tutti_type from_type,
             std::size_t count)
{
  if (count == 0) return;
  if (to_type == from_type) {
    std::memcpy(to, from, count * bytes_of(to_type));
    return;
  }
  with_type(to_type, [&](auto* to_element) {
    with_type(from_type, [&](auto* from_element) {
      auto* out = static_cast<decltype(to_element)>(to);
      const auto* in = static_cast<decltype(from_element)>(const_cast<void*>(from));
      for (std::size_t i = 0; i < count; ++i) store(out[i], load(in[i]));
    });
  });
}

}  // namespace

void check_values(const Values& values, bool on_cuda)
{
  if (values.data == nullptr)
    throw InvalidArgument("the values are missing (the argument is NULL); give an array");
  if (values.type < TUTTI_FP16 || values.type > TUTTI_FP64)
    throw InvalidArgument(
        fmt::format("element type {} is refused (it is not fp16, bf16, fp32 or fp64); use one of "
                    "these",
                    static_cast<int>(values.type)));
  if (values.space != TUTTI_HOST && values.space != TUTTI_CUDA)
    throw InvalidArgument(fmt::format(
        "memory space {} is refused (there is none of that number); use TUTTI_HOST or TUTTI_CUDA",
        static_cast<int>(values.space)));
  if (values.space == TUTTI_CUDA && !on_cuda)
    throw InvalidArgument(
        "values in TUTTI_CUDA are refused (the optimizer is on the host); set its \"device\" to "
        "\"cuda\" or copy them");
}

std::size_t bytes_of(tutti_type type)
{
  return type == TUTTI_FP64 ? 8 : type == TUTTI_FP32 ? 4 : 2;
}

tutti_type type_of(Precision precision)
{
  return precision == Precision::fp16   ? TUTTI_FP16
         : precision == Precision::bf16 ? TUTTI_BF16
                                        : TUTTI_FP32;
}

Precision precision_of(tutti_type type)
{
  switch (type) {
    case TUTTI_FP16:
      return Precision::fp16;
    case TUTTI_BF16:
      return Precision::bf16;
    case TUTTI_FP32:
      return Precision::fp32;
    default:
      break;
  }
  throw InvalidArgument(
      fmt::format("a parameter cannot have element type {} (it is not fp16, bf16 or fp32); choose "
                  "one of these, a caller's own arrays may be fp64 all the same",
                  static_cast<int>(type)));
}

void copy_values(const Values& to, const Values& from, std::size_t first, std::size_t count,
                 Device* device)
{
  const auto* begin = static_cast<const std::byte*>(from.data) + first * bytes_of(from.type);
  if (to.space == TUTTI_HOST && from.space == TUTTI_HOST)
    return convert(to.data, to.type, begin, from.type, count);
  constexpr std::size_t at_once = std::size_t{1} << 20;
  std::vector<std::byte> in(std::min(count, at_once) * bytes_of(from.type));
  std::vector<std::byte> out(std::min(count, at_once) * bytes_of(to.type));
  for (std::size_t done = 0; done < count; done += at_once) {
    const std::size_t now = std::min(at_once, count - done);
    device->copy(in.data(), begin + done * bytes_of(from.type), now * bytes_of(from.type));
    convert(out.data(), to.type, in.data(), from.type, now);
    device->copy(static_cast<std::byte*>(to.data) + done * bytes_of(to.type), out.data(),
                 now * bytes_of(to.type));
  }
}

}  // namespace tutti::c
