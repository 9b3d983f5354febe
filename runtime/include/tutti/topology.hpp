// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Who takes part: the data- and model-parallel axes over a duplicate of the caller's communicator,
// and which ranks share memory. World rank = d * M + m: the model-parallel rank m varies fastest.
#pragma once

#include <mpi.h>

#include <vector>

namespace tutti {

struct TopologyOptions {
  int model_parallel = 1;     ///< M; must divide the number of ranks
  bool shared_memory = true;  ///< false: every rank is a memory domain of its own
  /// Test knob: at most this many consecutive ranks of a node share memory; 0 is no limit.
  int domain_size = 0;
};

/// The axes of a job. Construction is collective over `communicator` and throws InvalidArgument on
/// all ranks, with one message, when M does not divide its size or an option differs between ranks.
/// Owns four communicators (MPI_ERRORS_RETURN); they are freed by the collective `close()`, never
/// by the destructor.
class Topology {
 public:
  explicit Topology(MPI_Comm communicator, TopologyOptions options = {});
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology();

  MPI_Comm world() const { return world_; }
  MPI_Comm data_axis() const { return data_axis_; }    ///< ranks with my m, in order of d
  MPI_Comm model_axis() const { return model_axis_; }  ///< ranks with my d, in order of m
  MPI_Comm domain() const { return domain_; }          ///< ranks that share memory with me

  int rank() const { return rank_; }
  int size() const { return size_; }
  int data_parallel() const { return size_ / model_parallel_; }  ///< D
  int model_parallel() const { return model_parallel_; }         ///< M
  int data_rank() const { return rank_ / model_parallel_; }      ///< d
  int model_rank() const { return rank_ % model_parallel_; }     ///< m

  /// World ranks of the memory domain of world rank `r`, ascending; known for every rank of the
  /// job.
  const std::vector<int>& domain_of(int r) const { return domains_[domain_index_[r]]; }
  bool same_domain(int a, int b) const { return domain_index_[a] == domain_index_[b]; }
  int domains() const { return static_cast<int>(domains_.size()); }
  int domain_index(int r) const { return domain_index_[r]; }
  bool shared_memory() const { return shared_memory_; }  ///< as asked for in the options

  /// Collective over world(): frees the communicators. A second call does nothing.
  void close();

 private:
  MPI_Comm world_ = MPI_COMM_NULL, data_axis_ = MPI_COMM_NULL, model_axis_ = MPI_COMM_NULL,
           domain_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, model_parallel_ = 1;
  bool shared_memory_ = true;
  std::vector<std::vector<int>> domains_;
  std::vector<int> domain_index_;
};

}  // namespace tutti
