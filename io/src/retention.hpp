// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which checkpoints of a directory may go once a newer one is there for all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace tutti::detail {

/// The complete checkpoints in `directory` that are not among the newest `keep` (`saved`, which was
/// just published, is one of them whatever its step; 0: all are kept), not the newest verified one,
/// and not pinned. Incomplete and foreign files are never among them. Throws IoError. By one rank.
std::vector<std::filesystem::path> expendable_checkpoints(const std::filesystem::path& directory,
                                                          const std::filesystem::path& saved,
                                                          std::uint64_t keep);

/// Removes them and what lies beside them. Throws IoError.
void remove_checkpoints(const std::vector<std::filesystem::path>& checkpoints);

}  // namespace tutti::detail
