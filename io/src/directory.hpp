// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The files of a checkpoint directory by their names: checkpoints of steps, and
// the hidden files of saves that are under way. What is in a checkpoint is not looked at here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "posix_file.hpp"

namespace tutti::detail {

/// "step-<12 digits>.h5"
std::string checkpoint_name(std::uint64_t step);

/// Names of files of steps, the highest step first; none if the directory does not exist. Throws
/// IoError when it cannot be read.
std::vector<std::string> files_by_step(const std::filesystem::path& directory);
/// Of two names of files of steps: the first is of a lower step.
bool is_older_step(const std::string& name, const std::string& than);

/// The hidden name under which a file comes into being, and a lock that is held for as long as this
/// lives and is let go by a process that dies. The lock is a file of its own: HDF5 and MPI-IO lock
/// the file that they write.
class HiddenName {
 public:
  /// In `directory`, which exists, for the file that will be called `name`.
  HiddenName(const std::filesystem::path& directory, const std::string& name);
  HiddenName(const HiddenName&) = delete;
  HiddenName& operator=(const HiddenName&) = delete;
  ~HiddenName();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_, lock_path_;
  PosixFile lock_;
};

/// Removes what dead processes left under hidden names. Best effort.
void remove_leftovers(const std::filesystem::path& directory) noexcept;

}  // namespace tutti::detail
