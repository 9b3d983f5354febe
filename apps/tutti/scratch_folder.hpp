// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A temporary folder of a command's own, gone with it.
#pragma once

#include <filesystem>
#include <string>

namespace tutti::apps {

class ScratchFolder {
 public:
  /// Makes tutti-<purpose>-XXXXXX where temporary files go. Throws IoError. Not collective.
  explicit ScratchFolder(const std::string& purpose);
  /// Removes it with all that is in it.
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::apps
