// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arrays between fp32 and the storage formats, and fp32 values rounded to what a storage format can
// hold.
#pragma once

#include <cstddef>

#include "tutti/precision.hpp"

namespace tutti::apps {

/// to[i] = values[i], exact.
void to_fp32(float* to, const void* values, Precision precision, std::size_t count);
/// to[i] = values[i] rounded to nearest even.
void from_fp32(void* to, Precision precision, const float* values, std::size_t count);
/// values[i] = values[i] rounded to nearest even in `precision`, still stored as fp32.
void round_to(Precision precision, float* values, std::size_t count);

}  // namespace tutti::apps
