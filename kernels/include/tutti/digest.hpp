// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Digests that do not depend on layout: sums mod 2^64 of a mix of identity and bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/annotations.hpp"

namespace tutti {

/// Finalizer of splitmix64 (Steele, Lea & Flood 2014): a bijection with full avalanche.
TUTTI_HD constexpr std::uint64_t mix64(std::uint64_t x)
{
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
TUTTI_HD constexpr std::uint64_t mix64(std::uint64_t a, std::uint64_t b)
{
  return mix64(mix64(a) ^ b);
}

/// FNV-1a of a name, mixed.
constexpr std::uint64_t hash_of(std::string_view text)
{
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix64(hash);
}

/// Part of `state_digest` that `count` consecutive elements of an array contribute. Element i with
/// fp32 bits b adds K (b + 2^32) mod 2^64, where the key K = mix64(seed, i / 4096) ^ mix64(i mod
/// 4096) and seed = mix64(hash_of(name), hash_of(array)): multilinear hashing with tabulated keys
/// (Lemire & Kaser 2014; Patrascu & Thorup 2012). Add the parts of all elements of all arrays:
/// equal for equal state at any layout; two states that differ have equal digests with a chance of
/// at most about 2^-32, a single changed element practically never. A definition to check others
/// against; `digest_elements` is the fast one.
inline std::uint64_t state_digest_part(std::string_view name, std::string_view array,
                                       std::uint64_t first_index, const float* values,
                                       std::size_t count)
{
  const std::uint64_t seed = mix64(hash_of(name), hash_of(array));
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t index = first_index + i;
    const std::uint64_t key = mix64(seed, index / 4096) ^ mix64(index % 4096);
    sum += key * (std::bit_cast<std::uint32_t>(values[i]) + (std::uint64_t{1} << 32));
  }
  return sum;
}

}  // namespace tutti
