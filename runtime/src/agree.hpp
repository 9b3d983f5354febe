// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How ranks turn a failure of one into the same words on all, before anything is built on it. The
// votes of a training step are not here: they are ballots.
#pragma once

#include <mpi.h>

#include <string>

namespace tutti::detail {

/// Collective over `communicator`: the text of the lowest rank that has one, empty if none has.
std::string first_text(MPI_Comm communicator, const std::string& text);

/// "1.5 GiB".
std::string readable_bytes(std::size_t bytes);

}  // namespace tutti::detail
