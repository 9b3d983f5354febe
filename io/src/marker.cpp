// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A marker is one line: the root digest of the certificate. A torn one is none.
#include "marker.hpp"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <system_error>

#include "posix_file.hpp"

namespace tutti::detail {
namespace {

std::filesystem::path beside(std::filesystem::path checkpoint, const char* ending)
{
  checkpoint += ending;
  return checkpoint;
}

}  // namespace

std::filesystem::path verified_marker(const std::filesystem::path& checkpoint)
{
  return beside(checkpoint, ".verified");
}

void leave_verified_marker(const std::filesystem::path& checkpoint, std::uint64_t root) noexcept
{
  try {
    if (has_verified_marker(checkpoint, root)) return;
    std::ofstream(verified_marker(checkpoint), std::ios::trunc) << fmt::format("{:016x}\n", root);
  } catch (...) {
    // Only the next retention and `tutti checkpoint ls` would have known.
  }
}

bool has_verified_marker(const std::filesystem::path& checkpoint, std::uint64_t root) noexcept
{
  try {
    std::ifstream in(verified_marker(checkpoint));
    std::string line;
    return std::getline(in, line) && !in.eof() && line == fmt::format("{:016x}", root);
  } catch (...) {
    return false;
  }
}

void drop_verified_marker(const std::filesystem::path& checkpoint) noexcept
{
  try {
    remove_quietly(verified_marker(checkpoint));
  } catch (...) {
    // As above.
  }
}

bool is_pinned(const std::filesystem::path& checkpoint) noexcept
{
  try {
    std::error_code ignored;
    return std::filesystem::exists(beside(checkpoint, ".pin"), ignored);
  } catch (...) {
    return false;
  }
}

}  // namespace tutti::detail
