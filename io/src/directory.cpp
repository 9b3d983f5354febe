// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Names are `.step-<digits>.h5.<8 hex digits>` with an ending: `.tmp` for the file, `.tmp.latest`
// for the pointer, `.lock` for the lock. The lock is there before the others and goes after them.
#include "directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <system_error>
#include <vector>

#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* file_ending = ".tmp";
constexpr const char* lock_ending = ".lock";

bool is_checkpoint_name(const std::string& name)
{
  return name.size() > 8 && name.starts_with("step-") && name.ends_with(".h5") &&
         std::all_of(name.begin() + 5, name.end() - 3, [](char c) { return c >= '0' && c <= '9'; });
}

/// A hidden name without its ending; nothing for names of any other kind. Any ending: MPI-IO makes
/// files of its own beside the one that it opens (`.tmp.locktest.0`).
std::string stem_of(const std::string& name)
{
  const std::size_t dot = name.find(".h5.") + 3;  // in front of the tag
  if (!name.starts_with(".") || dot < 3 || name.size() < dot + 10 || name[dot + 9] != '.')
    return "";
  const std::string tag = name.substr(dot + 1, 8);
  const bool tagged = tag.find_first_not_of("0123456789abcdef") == std::string::npos;
  return tagged && is_checkpoint_name(name.substr(1, dot - 1)) ? name.substr(0, dot + 9) : "";
}

/// True if whoever made these files is gone; then `lock` keeps others away from them.
bool take_over(const fs::path& stem, PosixFile& lock)
{
  try {
    lock = PosixFile::open_to_write(stem.string() + lock_ending);
  } catch (const FileError& error) {
    return error.number == ENOENT;
  }
  return lock.try_lock() == PosixFile::Lock::taken;
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) { return fmt::format("step-{:012}.h5", step); }

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

HiddenName::HiddenName(const fs::path& directory, const std::string& name)
{
  std::random_device random;  // another job, or what a killed one left behind
  while (true) {
    const std::string stem =
        (directory / fmt::format(".{}.{:08x}", name, static_cast<unsigned>(random()))).string();
    PosixFile lock;
    try {
      lock = PosixFile::create(stem + lock_ending);
    } catch (const FileError& error) {
      if (error.number == EEXIST) continue;
      throw;
    }
    lock_ = std::move(lock);
    lock_path_ = stem + lock_ending;
    path_ = stem + file_ending;
    // Between creation and lock another job may have taken it for a leftover.
    if (lock_.try_lock() != PosixFile::Lock::busy && lock_.has_name()) return;
  }
}

HiddenName::~HiddenName()
{
  if (!lock_path_.empty()) remove_quietly(lock_path_);
}

void remove_leftovers(const fs::path& directory) noexcept
{
  try {
    std::map<std::string, std::vector<fs::path>> files;  // by stem
    std::error_code error;
    fs::directory_iterator entries(directory, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error))
      files[stem_of(entries->path().filename().string())].push_back(entries->path());
    files.erase("");
    for (const auto& [name, paths] : files) {
      const fs::path stem = directory / name;
      PosixFile lock;
      if (!take_over(stem, lock)) continue;
      for (const fs::path& path : paths)
        if (!path.string().ends_with(lock_ending)) remove_quietly(path);
      remove_quietly(stem.string() + lock_ending);
    }
  } catch (const std::exception&) {
    // They stay for the next save.
  }
}

}  // namespace tutti::detail
