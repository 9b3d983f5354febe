// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A C++ code that has, or has not, started MPI and Kokkos itself: tutti_init starts what is
// missing, and tutti_finalize ends that and nothing else. usage: host_program none|mpi|both
#include <Kokkos_Core.hpp>
#include <string>

#include "check.h"

namespace {

bool mpi_runs()
{
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

void train()
{
  tutti_topology topology = nullptr;
  tutti_optimizer adam = nullptr;
  tutti_run run = nullptr;
  std::int64_t p = 0;
  OK(tutti_topology_create(MPI_COMM_WORLD, 1, &topology));
  OK(tutti_optimizer_create_adam(topology, "adam", &adam));
  OK(tutti_parameter_add(adam, "scalar", TUTTI_FP32, 0, nullptr, TUTTI_REPLICATED, &p));
  OK(tutti_run_create(topology, &run));
  OK(tutti_run_add_optimizer(run, adam));
  OK(tutti_run_start(run));
  const float one = 1;
  OK(tutti_gradient_set(adam, p, TUTTI_FP32, TUTTI_HOST, &one));
  OK(tutti_window_add(run, 1, 1));
  tutti_outcome outcome;
  OK(tutti_step(run, &outcome));
  CHECK(outcome.verdict == TUTTI_COMMIT && outcome.step == 1);
  OK(tutti_run_destroy(&run));
  OK(tutti_optimizer_destroy(&adam));
  OK(tutti_topology_destroy(&topology));
}

}  // namespace

int main(int argc, char** argv)
{
  const std::string has = argc > 1 ? argv[1] : "none";
  if (has != "none") MPI_Init(&argc, &argv);
  if (has == "both") {
    Kokkos::initialize(argc, argv);
    train();  // needs no tutti_init
  }
  OK(tutti_init(&argc, &argv));
  CHECK(mpi_runs() && Kokkos::is_initialized());
  train();
  OK(tutti_finalize());
  CHECK(mpi_runs() == (has != "none"));
  CHECK(Kokkos::is_initialized() == (has == "both"));
  if (has == "both") {
    train();
    OK(tutti_init(nullptr, nullptr));  // nothing has ended, so it may begin again
    OK(tutti_finalize());
    Kokkos::finalize();
  }
  if (has != "none") MPI_Finalize();
  return failures > 0 ? 1 : 0;
}
