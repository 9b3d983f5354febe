// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Point to point as NCCL has it, strict where MPI is not: a send and its receive must have the same
// count, and nothing moves outside a group.
#include "nccl_double.hpp"

#include <mpi.h>
#include <nccl.h>

#include <cstring>
#include <vector>

namespace {

struct Operation {
  void* memory;
  std::size_t bytes;
  int peer;
  bool sends;
  std::vector<char> host;
};

MPI_Comm world = MPI_COMM_NULL;
bool open_group = false;
std::vector<Operation> operations;

ncclResult_t add(void* memory, std::size_t bytes, int peer, ncclComm_t comm, bool sends)
{
  if (!open_group || comm == nullptr) return ncclInvalidUsage;
  operations.push_back({memory, bytes, peer, sends, std::vector<char>(bytes)});
  return ncclSuccess;
}

}  // namespace

namespace tutti::test {
NcclDouble& nccl_double()
{
  static NcclDouble settings;
  return settings;
}
}  // namespace tutti::test

using tutti::test::nccl_double;

extern "C" {

#ifndef NCCL_DOUBLE_ON_CUDA
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
#endif

ncclResult_t ncclGetVersion(int* version)
{
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id)
{
  std::memcpy(id->internal, "unique", 7);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank)
{
  int size = 0, mine = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  if (size != ranks || mine != rank || std::strcmp(id.internal, "unique") != 0)
    return ncclInvalidUsage;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  *comm = reinterpret_cast<ncclComm_t>(&world);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t)
{
  MPI_Comm_free(&world);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error)
{
  *error = ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result)
{
  return result == ncclSystemError   ? "unhandled system error"
         : result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "another error";
}
const char* ncclGetLastError(ncclComm_t) { return "the double was told to fail"; }

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t)
{
  return add(const_cast<void*>(from), count, peer, comm, true);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t)
{
  return add(to, count, peer, comm, false);
}

ncclResult_t ncclGroupStart()
{
  if (open_group) return ncclInvalidUsage;
  open_group = true;
  operations.clear();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
  if (!open_group) return ncclInvalidUsage;
  open_group = false;
  int failed = nccl_double().fails ? 1 : 0, any = 0;
  nccl_double().fails = false;
  PMPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, world);
  if (any != 0) return failed != 0 ? ncclSystemError : ncclRemoteError;

  std::vector<MPI_Request> requests(operations.size(), MPI_REQUEST_NULL);
  std::vector<MPI_Status> statuses(operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& o = operations[i];
    const int bytes = static_cast<int>(o.bytes);
    if (o.sends) {
      nccl_double().copy(o.host.data(), o.memory, o.bytes);
      PMPI_Isend(o.host.data(), bytes, MPI_BYTE, o.peer, 0, world, &requests[i]);
    } else {
      PMPI_Irecv(o.host.data(), bytes, MPI_BYTE, o.peer, 0, world, &requests[i]);
    }
  }
  PMPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& o = operations[i];
    if (o.sends) continue;
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != o.bytes) return ncclInternalError;
    nccl_double().copy(o.memory, o.host.data(), o.bytes);
  }
  ++nccl_double().groups;
  nccl_double().operations += operations.size();
  return ncclSuccess;
}
}
