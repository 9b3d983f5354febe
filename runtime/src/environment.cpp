// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Starting and ending MPI and Kokkos, each only by who started it. The only place of the library
// that does so, and only because a program made an Environment.
#include "tutti/environment.hpp"

#include <mpi.h>

#include <exception>

#include "tutti/error.hpp"
#include "tutti/kokkos_runtime.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti {
namespace {

// Neither library starts a second time, so a second Environment would fail inside of them.
bool ended_once = false;

}  // namespace

Environment::Environment(int& argc, char**& argv) : exceptions_(std::uncaught_exceptions())
{
  int initialized = 0;
  int finalized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
  if (finalized != 0 || (ended_once && (initialized == 0 || !kokkos_is_running()))) {
    throw InvalidArgument(
        "the environment cannot be started (MPI or Kokkos has already ended in this process); keep "
        "one tutti::Environment for the life of the program");
  }
  if (initialized == 0) {
    check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &thread_level_),
              "MPI_Init_thread");
    owns_mpi_ = true;
  } else {
    check_mpi(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
  }
  if (!kokkos_is_running()) owns_kokkos_ = start_kokkos(argc, argv);
}

Environment::~Environment()
{
  if (owns_kokkos_) {
    end_kokkos();
    ended_once = true;
  }
  // MPI_Finalize is collective. While an exception unwinds this rank, others may wait in a
  // collective that it will never join: leaving without it lets the launcher end the job.
  if (owns_mpi_ && std::uncaught_exceptions() == exceptions_) {
    MPI_Finalize();
    ended_once = true;
  }
}

}  // namespace tutti
