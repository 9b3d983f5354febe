// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program without Catch2, whose main has already started MPI and Kokkos: this one must see them
// start and end. Prints what is wrong and returns 1.
#include "tutti/environment.hpp"
#include "tutti/kokkos_runtime.hpp"

#include <mpi.h>

#include <cstdio>
#include <string>

#include "tutti/error.hpp"

namespace {

int failures = 0;

void check(bool holds, const char* what)
{
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

bool mpi_runs()
{
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

}  // namespace

int main(int argc, char** argv)
{
  // "mpi": the program has started MPI itself; otherwise nobody has.
  const bool own_mpi = argc > 1 && std::string(argv[1]) == "mpi";
  if (own_mpi) MPI_Init(&argc, &argv);
  {
    tutti::Environment environment(argc, argv);
    check(mpi_runs(), "MPI runs");
    check(tutti::kokkos_is_running(), "Kokkos runs");
    check(environment.thread_level() >= (own_mpi ? MPI_THREAD_SINGLE : MPI_THREAD_FUNNELED),
          "the thread level is known");
    {
      tutti::Environment inner(argc, argv);
      check(inner.thread_level() == environment.thread_level(), "a second one sees the same level");
    }
    check(mpi_runs(), "MPI runs after a second environment has ended");
    check(tutti::kokkos_is_running(), "Kokkos runs after a second environment has ended");
  }
  check(!tutti::kokkos_is_running(), "Kokkos has ended");
  check(mpi_runs() == own_mpi, "MPI has ended exactly if the environment had started it");
  try {
    tutti::Environment again(argc, argv);
    check(false, "an environment after the end is refused");
  } catch (const tutti::InvalidArgument&) {
  }
  if (own_mpi) {
    check(mpi_runs(), "a refused environment leaves MPI alone");
    MPI_Finalize();
  }
  return failures > 0 ? 1 : 0;
}
