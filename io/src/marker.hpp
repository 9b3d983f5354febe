// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Small files beside a checkpoint: `<file>.verified` says that every block of it once had its hash,
// `<file>.pin` (made by people) that it must stay.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tutti::detail {

std::filesystem::path verified_marker(const std::filesystem::path& checkpoint);

/// Best effort: where it cannot be written, there is none. `root`: of the file's certificate, so
/// that the marker of a file that was replaced means nothing.
void leave_verified_marker(const std::filesystem::path& checkpoint, std::uint64_t root) noexcept;
bool has_verified_marker(const std::filesystem::path& checkpoint, std::uint64_t root) noexcept;

/// Damage was found: the mark of an earlier day must not keep this file for the newest good one.
void drop_verified_marker(const std::filesystem::path& checkpoint) noexcept;

bool is_pinned(const std::filesystem::path& checkpoint) noexcept;

}  // namespace tutti::detail
