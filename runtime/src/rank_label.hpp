// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The number by which this process calls itself in messages of failed MPI calls: its rank in the
// Topology that was made last. A label only; nothing is decided by it.
#pragma once

namespace tutti::detail {

void label_rank(int rank) noexcept;

}  // namespace tutti::detail
