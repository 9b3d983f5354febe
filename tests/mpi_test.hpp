// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Short forms for tests that run on several ranks of MPI_COMM_WORLD. Nothing here checks anything
// by itself.
#pragma once
#include <mpi.h>

namespace tutti::test {

inline int world_rank()
{
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

inline int world_size()
{
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// True on every rank if `here` is true on every rank; collective over MPI_COMM_WORLD. With
/// `REQUIRE(on_all_ranks(x))` all ranks leave the test case together, so none waits for another.
inline bool on_all_ranks(bool here)
{
  int mine = here ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all == 1;
}

}  // namespace tutti::test
