// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sum of digest.hpp's `state_digest_part`, by the widest vectors of this machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

/// state_digest_part(name, array, first_index, values, count) with `seed` = mix64(hash_of(name),
/// hash_of(array)). Host memory only.
std::uint64_t digest_elements(std::uint64_t seed, std::uint64_t first_index, const float* values,
                              std::size_t count);

}  // namespace tutti
