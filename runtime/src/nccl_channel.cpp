// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "nccl_channel.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::detail {

struct NcclChannel::State {
  ncclComm_t communicator = nullptr;
};

namespace {

/// A group that has failed cannot be voted on any more than a failing MPI call can.
void check(ncclResult_t result, const char* what, ncclComm_t communicator = nullptr)
{
  if (result == ncclSuccess) return;
  throw MpiError(fmt::format("{} failed ({}: {}); end the job", what, ncclGetErrorString(result),
                             ncclGetLastError(communicator)),
                 static_cast<int>(result));
}

}  // namespace

std::string NcclChannel::version()
{
  int number = 0;
  if (ncclGetVersion(&number) != ncclSuccess) return "of unknown version";
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

NcclChannel::NcclChannel(MPI_Comm communicator) : state_(std::make_unique<State>())
{
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  struct {
    ncclUniqueId id;
    int result;
  } start{};
  if (rank == 0) start.result = static_cast<int>(ncclGetUniqueId(&start.id));
  check_mpi(MPI_Bcast(&start, sizeof start, MPI_BYTE, 0, communicator), "MPI_Bcast of NCCL's id");
  check(static_cast<ncclResult_t>(start.result), "ncclGetUniqueId");
  check(ncclCommInitRank(&state_->communicator, size, start.id, rank), "ncclCommInitRank");
}

NcclChannel::~NcclChannel() { static_cast<void>(state_.release()); }

void NcclChannel::transfer(const MessageSet& messages, const std::byte* from, std::byte* to)
{
  const ncclComm_t communicator = state_->communicator;
  const cudaStream_t stream = nullptr;  // kernels are complete before it, as their calls say
  check(ncclGroupStart(), "ncclGroupStart", communicator);
  ncclResult_t result = ncclSuccess;
  const auto keep = [&](ncclResult_t next) {
    if (result == ncclSuccess) result = next;
  };
  messages.for_each_received([&](int peer, const MessageSet::Run& run) {
    keep(ncclRecv(to + run.offset, run.bytes, ncclInt8, peer, communicator, stream));
  });
  messages.for_each_sent([&](int peer, const MessageSet::Run& run) {
    keep(ncclSend(from + run.offset, run.bytes, ncclInt8, peer, communicator, stream));
  });
  keep(ncclGroupEnd());  // also after an error: an open group would hold whatever comes next
  check(result, "the exchange by NCCL", communicator);
  if (const cudaError_t error = cudaStreamSynchronize(stream); error != cudaSuccess)
    throw MpiError(
        fmt::format("the exchange by NCCL failed ({}); end the job", cudaGetErrorString(error)));
  check(ncclCommGetAsyncError(communicator, &result), "ncclCommGetAsyncError", communicator);
  check(result, "the exchange by NCCL", communicator);
}

void NcclChannel::close()
{
  if (!state_) return;
  check(ncclCommDestroy(state_->communicator), "ncclCommDestroy");
  state_.reset();
}

}  // namespace tutti::detail
