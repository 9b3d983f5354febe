// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What tutti uses of NCCL and of the CUDA runtime, over MPI and without a GPU: nccl_channel.cpp is
// compiled against this header and linked with nccl_double.cpp. Names and numbers are NCCL's.
#pragma once

#include <cstddef>
#ifdef NCCL_DOUBLE_ON_CUDA
#include <cuda_runtime_api.h>  // a CUDA build: its memory is real, only NCCL is not
#else
extern "C" {
typedef struct CUstream_st* cudaStream_t;
typedef enum { cudaSuccess = 0, cudaErrorUnknown = 999 } cudaError_t;
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
const char* cudaGetErrorString(cudaError_t error);
}
#endif

extern "C" {
typedef struct ncclComm* ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;
typedef enum {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6
} ncclResult_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
}
