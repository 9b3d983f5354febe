// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Short forms for tests that run on several ranks of MPI_COMM_WORLD. Nothing here checks anything
// by itself.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/digest.hpp"

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

/// The same value on all ranks? Collective over MPI_COMM_WORLD, past a test's own MPI_Allreduce.
inline bool agreed(std::uint64_t value)
{
  std::uint64_t range[2] = {value, ~value};
  PMPI_Allreduce(MPI_IN_PLACE, range, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
  return range[0] == ~range[1];
}
inline bool agreed(const std::string& text) { return agreed(hash_of(text)); }

/// The model-parallel degrees up to 3 that the ranks can be arranged in.
inline std::vector<int> degrees()
{
  std::vector<int> out;
  for (int m = 1; m <= 3; ++m)
    if (world_size() % m == 0) out.push_back(m);
  return out;
}

}  // namespace tutti::test
