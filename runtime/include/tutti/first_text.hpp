// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How what one rank has to say, a failure for the most part, becomes the same words on all ranks
// outside of a step. The votes of a step are ballots.
#pragma once

#include <mpi.h>

#include <string>

namespace tutti {

/// Collective over `communicator`: `code` and `text` of the lowest rank whose code is not 0, on all
/// ranks; returns that rank. Returns -1, and leaves both as they are, where all codes are 0. One
/// integer minimum finds the rank; only then do words travel.
int first_text(MPI_Comm communicator, int& code, std::string& text);
/// The same without a code: the text of the lowest rank that has one; empty if none has.
std::string first_text(MPI_Comm communicator, std::string text);

/// What an exception says, "out of memory" where there is none even for that: whoever has failed
/// must get to the vote.
std::string text_of_failure(const char* what) noexcept;

/// Collective over `communicator`: the text of rank `root` on all ranks.
void broadcast_text(MPI_Comm communicator, std::string& text, int root);

}  // namespace tutti
