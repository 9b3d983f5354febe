// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The way of messages between buffers in device memory by NCCL. Built with TUTTI_ENABLE_NCCL; other
// builds have one that only says so (no_nccl.cpp).
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>

#include "message_set.hpp"

namespace tutti::detail {

class NcclChannel {
 public:
  /// "2.28.9", or nothing in a build without NCCL.
  static std::string version();

  /// Collective over `communicator`, each of whose ranks has a CUDA device of its own as its
  /// current one. Throws MpiError on the ranks where a call of NCCL fails: as with MPI, the job
  /// must end.
  explicit NcclChannel(MPI_Comm communicator);
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;
  ~NcclChannel();  ///< leaks without close(), which is collective

  /// Collective: as MessageSet::transfer. All runs are one NCCL group, and one wait is for all.
  void transfer(const MessageSet& messages, const std::byte* from, std::byte* to);
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::detail
