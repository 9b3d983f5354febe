// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the benchmarks share: medians, and one number from those of all ranks.
#pragma once

#include <mpi.h>

#include <vector>

namespace tutti::apps {

double median(std::vector<double> values);

/// Collective over `world`.
double over_ranks(double value, MPI_Op op, MPI_Comm world);

}  // namespace tutti::apps
