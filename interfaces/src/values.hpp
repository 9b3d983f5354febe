// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A caller's arrays: their element types and spaces, and copies between them and tutti's own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/device.hpp"
#include "tutti/tutti.h"

namespace tutti::c {

/// An array with what is needed to read it.
struct Values {
  void* data = nullptr;
  tutti_type type = TUTTI_FP32;
  tutti_space space = TUTTI_HOST;
};

/// Throws InvalidArgument for a number that is none, and for TUTTI_CUDA unless `on_cuda`.
void check_values(const Values& values, bool on_cuda);
std::size_t bytes_of(tutti_type type);
tutti_type type_of(Precision precision);
/// Throws InvalidArgument for fp64 and numbers that are none.
Precision precision_of(tutti_type type);

/// to[i] = from[first + i]. `device`: of arrays in TUTTI_CUDA; may be nullptr without any.
void copy_values(const Values& to, const Values& from, std::size_t first, std::size_t count,
                 Device* device);

}  // namespace tutti::c
