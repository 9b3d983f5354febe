// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Of a ShardedAdam: what a fault plan does to it.
#include <algorithm>
#include <limits>

#include "sharded_adam_state.hpp"

namespace tutti {

std::size_t ShardedAdam::State::held_parameter(const std::string& name) const
{
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (layout.piece(p).elements != 0 && (name == "*" || parameters[p].name == name)) return p;
  return parameters.size();
}

bool ShardedAdam::inject_gradient(const std::string& name, std::uint64_t element, float value)
{
  State& s = *state_;
  const std::size_t p = s.held_parameter(name);
  if (p == s.parameters.size()) return false;
  const Precision precision = s.parameters[p].precision;
  std::uint32_t stored[1] = {};
  store_element(stored, precision, 0, value);
  s.device.copy(s.gradient(p) + element % s.layout.piece(p).elements * bytes_of(precision), stored,
                bytes_of(precision));
  return true;
}

bool ShardedAdam::inject_overflow()
{
  State& s = *state_;
  if (s.blocks() == 0) return false;
  const float huge = std::numeric_limits<float>::max();
  s.device.copy(s.sum.floats(), &huge, sizeof huge);
  return true;
}

bool ShardedAdam::inject_state(const std::string& name, std::uint64_t element, float value)
{
  State& s = *state_;
  const auto owned = [&](std::size_t i, std::size_t p) -> std::size_t {
    if (s.layout.parameter_of(s.shard[i]) != p) return 0;
    const Piece& piece = s.layout.piece(p);
    return std::min(block_elements,
                    piece.elements - (s.shard[i] - piece.first_block) * block_elements);
  };
  for (std::size_t p = 0; p < s.parameters.size(); ++p) {
    if (name != "*" && s.parameters[p].name != name) continue;
    std::size_t elements = 0;
    for (std::size_t i = 0; i < s.blocks(); ++i) elements += owned(i, p);
    if (elements == 0) continue;
    std::size_t left = element % elements, i = 0;
    for (; left >= owned(i, p); ++i) left -= owned(i, p);
    s.device.copy(s.now.exp_avg.floats() + i * block_elements + left, &value, sizeof value);
    return true;
  }
  return false;
}

bool ShardedAdam::inject_bitflip(const std::string& name, std::uint64_t element, unsigned bit)
{
  State& s = *state_;
  const std::size_t p = s.held_parameter(name);
  if (p == s.parameters.size()) return false;
  const std::size_t width = bytes_of(s.parameters[p].precision);
  auto* values = static_cast<std::byte*>(const_cast<void*>(weights(p)));
  std::byte* const target = values + element % s.layout.piece(p).elements * width + bit / 8 % width;
  std::byte value{};
  s.device.copy(&value, target, 1);
  value ^= std::byte{1} << bit % 8;
  s.device.copy(target, &value, 1);
  return true;
}

}  // namespace tutti
