// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "scratch_folder.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tutti/error.hpp"

namespace tutti::apps {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder(const std::string& purpose)
{
  std::string name = (fs::temp_directory_path() / fmt::format("tutti-{}-XXXXXX", purpose)).string();
  if (::mkdtemp(name.data()) == nullptr)
    throw IoError(
        fmt::format("folder {} cannot be made ({}); set TMPDIR", name, std::strerror(errno)));
  path_ = name;
}

ScratchFolder::~ScratchFolder()
{
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace tutti::apps
