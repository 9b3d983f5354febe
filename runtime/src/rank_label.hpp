// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The number by which this process calls itself in messages of failed MPI calls and of objects left
// open: its rank in the Topology that was made last. A label only; nothing is decided by it.
#pragma once

namespace tutti::detail {

void label_rank(int rank) noexcept;

/// For a destructor that leaks what only the collective `call` may free: says so in one line of
/// standard error, once per process. Silent while an exception unwinds, whose words come first.
void report_left_open(const char* object, const char* call) noexcept;

}  // namespace tutti::detail
