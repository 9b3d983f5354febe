// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How a failure of one rank becomes the same typed error on all ranks: local work runs guarded,
// then the ranks agree. Everything in io/ that can fail locally goes through here.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>

namespace tutti::detail {

/// Collective: every rank runs `work`; if it throws anywhere, all ranks throw the error of the
/// lowest such rank, with its type and text and "rank r: " in front. MpiError is not voted on.
void on_all_ranks(MPI_Comm communicator, const std::function<void()>& work);

/// Collective: rank 0 runs `work`; if it throws, all ranks throw the same error. Only an IoError
/// names the rank: anything else is a judgement that any rank would have come to.
void on_rank_zero(MPI_Comm communicator, const std::function<void()>& work);

}  // namespace tutti::detail
