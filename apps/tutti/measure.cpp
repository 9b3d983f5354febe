// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "measure.hpp"

#include <algorithm>

#include "tutti/mpi_check.hpp"

namespace tutti::apps {

double median(std::vector<double> values)
{
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double over_ranks(double value, MPI_Op op, MPI_Comm world)
{
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, op, world), "MPI_Allreduce");
  return value;
}

}  // namespace tutti::apps
