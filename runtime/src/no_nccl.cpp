// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// In place of nccl_channel.cpp, in a build without NCCL.
#include "nccl_channel.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {

struct NcclChannel::State {};

std::string NcclChannel::version() { return {}; }

NcclChannel::NcclChannel(MPI_Comm)
{
  throw InvalidArgument("NCCL is not there (built without TUTTI_ENABLE_NCCL); use MPI");
}
NcclChannel::~NcclChannel() = default;
void NcclChannel::transfer(const MessageSet&, const std::byte*, std::byte*) {}
void NcclChannel::close() {}

}  // namespace tutti::detail
