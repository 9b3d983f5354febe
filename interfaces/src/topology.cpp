// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// tutti_init to tutti_topology_destroy: the lifetime of MPI and Kokkos where tutti has started
// them, and the axes of a job.
#include "handles.hpp"
#include "status.hpp"
#include "tutti/environment.hpp"
#include "tutti/kokkos_runtime.hpp"
#include "tutti/mpi_check.hpp"

using namespace tutti;
using namespace tutti::c;

namespace {

std::unique_ptr<Environment> environment;  // of the first tutti_init that is in force
int inits = 0;

void require_running()
{
  int initialized = 0;
  int finalized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
  // tutti_init does not start Kokkos where a CUDA build finds no GPU; its host devices need none.
  if (initialized == 0 || finalized != 0 || (inits == 0 && !kokkos_is_running()))
    throw InvalidArgument(
        "a topology cannot be made (MPI or Kokkos is not running); call tutti_init first, it "
        "starts what is missing");
}

}  // namespace

tutti_status tutti_init(int* argc, char*** argv)
{
  return guarded([&] {
    if (inits == 0) {
      int no_arguments = 1;
      static char name[] = "tutti";
      static char* names[] = {name, nullptr};
      char** no_values = names;
      const bool both = argc != nullptr && argv != nullptr;
      environment =
          std::make_unique<Environment>(both ? *argc : no_arguments, both ? *argv : no_values);
    }
    ++inits;
  });
}

tutti_status tutti_finalize(void)
{
  return guarded([&] {
    if (inits == 0)
      throw InvalidArgument(
          "tutti_finalize is refused (no tutti_init is in force); call it once for each");
    if (--inits == 0) environment.reset();
  });
}

tutti_status tutti_topology_create(MPI_Comm communicator, int model_parallel,
                                   tutti_topology* topology)
{
  return guarded([&] {
    require_running();
    given(topology, "the output for the topology");
    if (communicator == MPI_COMM_NULL)
      throw InvalidArgument("the communicator is MPI_COMM_NULL; give one that this rank is in");
    *topology = std::make_unique<tutti_topology_s>(communicator, model_parallel).release();
  });
}

tutti_status tutti_topology_ranks(tutti_topology topology, int* data_rank, int* data_parallel,
                                  int* model_rank, int* model_parallel)
{
  return guarded([&] {
    const Topology& t = given(topology, "the topology").topology;
    if (data_rank != nullptr) *data_rank = t.data_rank();
    if (data_parallel != nullptr) *data_parallel = t.data_parallel();
    if (model_rank != nullptr) *model_rank = t.model_rank();
    if (model_parallel != nullptr) *model_parallel = t.model_parallel();
  });
}

tutti_status tutti_topology_destroy(tutti_topology* topology)
{
  return guarded([&] {
    tutti_topology_s* object = given(topology, "the topology");
    if (object == nullptr) return;
    if (object->users != 0)
      throw InvalidArgument(
          "the topology cannot be destroyed (optimizers or runs use it); destroy these first");
    object->topology.close();
    delete object;
    *topology = nullptr;
  });
}
