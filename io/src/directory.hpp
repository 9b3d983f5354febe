// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The checkpoints of a directory by their names; nothing is opened here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::detail {

/// Names of files of steps, the highest step first; none where there is no such directory. Throws
/// IoError when it exists and cannot be read.
std::vector<std::string> files_by_step(const std::filesystem::path& directory);

/// Of two names of files of steps: the first is of a lower step.
bool is_older_step(const std::string& name, const std::string& than);

}  // namespace tutti::detail
