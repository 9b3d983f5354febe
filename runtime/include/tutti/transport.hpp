// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The Transport seam: the two integer collectives of a step and the words that go with a bad
// verdict. MPI drives it in production, an in-process one drives many virtual ranks in tests.
#pragma once

#include <mpi.h>

#include <memory>
#include <span>
#include <string>

#include "tutti/ballot.hpp"

namespace tutti {

/// All calls are collective over the job and throw only MpiError.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The summed ballot, and has_gradient[p] = some rank has it.
  virtual void combine(Ballot& ballot, std::span<std::uint8_t> has_gradient) = 0;
  virtual void combine(Confirm& confirm) = 0;
  // Only after a verdict that all ranks know:
  /// `text` of `root` on all ranks, whole; empty on a rank without memory for it.
  virtual void share(std::string& text, int root) = 0;
  /// `all` is what each rank gave as `mine`, in rank order; equal lengths on all ranks.
  virtual void gather(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all) = 0;
  virtual void close() {}
};

/// One MPI_Allreduce a ballot, with an MPI_Op of its own.
std::unique_ptr<Transport> make_mpi_transport(MPI_Comm communicator, std::size_t parameters);

}  // namespace tutti
