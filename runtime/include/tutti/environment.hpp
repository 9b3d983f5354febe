// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Lifetime of MPI and Kokkos for programs that have no opinion of their own.
#pragma once

namespace tutti {

/// Starts MPI (MPI_THREAD_FUNNELED) and Kokkos only if nobody has, and finalizes only what it
/// started, in reverse order. Once per process: neither restarts; throws InvalidArgument after one
/// of them has ended. Collective where it starts or ends MPI. A destructor that an exception
/// unwinds leaves MPI running: the launcher then ends the job, where MPI_Finalize would wait for
/// ranks that are in another collective.
class Environment {
 public:
  Environment(int& argc, char**& argv);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();
  /// Thread support that MPI provides (MPI_THREAD_SINGLE .. MPI_THREAD_MULTIPLE).
  int thread_level() const { return thread_level_; }

 private:
  bool owns_mpi_ = false, owns_kokkos_ = false;
  int thread_level_ = 0;
  int exceptions_ = 0;
};

}  // namespace tutti
