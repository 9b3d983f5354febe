// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the benchmarks share: medians, one number from those of all ranks, and their common time.
#pragma once

#include <mpi.h>

#include <vector>

#include "tutti/mpi_check.hpp"

namespace tutti::apps {

double median(std::vector<double> values);

/// Collective over `world`.
double over_ranks(double value, MPI_Op op, MPI_Comm world);

/// Collective over `world`: seconds of work that all ranks begin together, until the last is done.
/// On no rank may the work throw by itself.
template <class Work>
double seconds_together(MPI_Comm world, const Work& work)
{
  check_mpi(MPI_Barrier(world), "MPI_Barrier");
  const double begin = MPI_Wtime();
  work();
  return over_ranks(MPI_Wtime() - begin, MPI_MAX, world);
}

}  // namespace tutti::apps
