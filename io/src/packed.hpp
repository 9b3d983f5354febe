// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Metadata for all ranks from one that reads it.
#pragma once

#include <mpi.h>

#include <filesystem>

#include "contents.hpp"

namespace tutti::detail {

/// Collective: rank 0 reads and judges the metadata of its `path`, all ranks get it. Throws on all
/// ranks the same, as read_contents does.
Contents read_and_share(const std::filesystem::path& path, MPI_Comm communicator);

}  // namespace tutti::detail
