// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Lifetime of MPI and Kokkos for programs that have no opinion of their own.
#pragma once

namespace tutti {

/// Starts MPI (MPI_THREAD_FUNNELED) and Kokkos only if nobody has, and finalizes only what it started, in
/// reverse order. Once per process: Kokkos does not restart. Collective where it starts or ends MPI.
class Environment {
 public:
  Environment(int& argc, char**& argv);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();
  int thread_level() const { return thread_level_; }

 private:
  bool owns_mpi_ = false, owns_kokkos_ = false;
  int thread_level_ = 0;
};

}  // namespace tutti
