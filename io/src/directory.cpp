// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Names are "step-<digits>.h5".
#include "directory.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "posix_file.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

namespace fs = std::filesystem;

bool is_checkpoint_name(const std::string& name)
{
  return name.size() > 8 && name.starts_with("step-") && name.ends_with(".h5") &&
         std::all_of(name.begin() + 5, name.end() - 3, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

// More digits are a higher step: names are padded, but only to twelve.
bool is_older_step(const std::string& name, const std::string& than)
{
  return name.size() != than.size() ? name.size() < than.size() : name < than;
}

std::vector<std::string> files_by_step(const fs::path& directory)
{
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error.value() == ENOENT) return names;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (is_checkpoint_name(entries->path().filename().string()))
      names.push_back(entries->path().filename().string());
  if (error) throw IoError(system_error_text("list", directory, error.value()));
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return is_older_step(b, a); });
  return names;
}

}  // namespace tutti::detail
