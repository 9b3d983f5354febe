// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The smallest program against an installed tutti: the axes of a job of any size.
#include <mpi.h>

#include <cstdio>
#include <tutti/tutti.hpp>

int main(int argc, char** argv)
{
  tutti::Environment environment(argc, argv);
  tutti::Topology topology(MPI_COMM_WORLD);
  if (topology.rank() == 0) {
    std::printf("%d data-parallel x %d model-parallel ranks\n", topology.data_parallel(),
                topology.model_parallel());
  }
  topology.close();
  return 0;
}
