// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Retention reads the metadata of what is there and trusts neither names nor markers: a marker
// counts only for the file whose root digest it has.
#include "retention.hpp"

#include <string>

#include "contents.hpp"
#include "directory.hpp"
#include "hdf5.hpp"
#include "marker.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {

namespace fs = std::filesystem;

std::vector<fs::path> expendable_checkpoints(const fs::path& directory, const fs::path& saved,
                                             std::uint64_t keep)
{
  std::vector<fs::path> expendable;
  const std::vector<std::string> names = files_by_step(directory);
  if (keep == 0 || names.size() <= keep) return expendable;
  const QuietHdf5 quiet;
  std::uint64_t kept = 1;  // `saved`
  bool verified_one = false;
  for (const std::string& name : names) {
    const fs::path checkpoint = directory / name;
    if (checkpoint == saved) continue;
    try {
      const Contents contents = read_contents(checkpoint);
      const bool newest_verified =
          !verified_one && has_verified_marker(checkpoint, contents.certificate.root);
      verified_one = verified_one || newest_verified;
      if (kept < keep)
        ++kept;
      else if (!newest_verified && !is_pinned(checkpoint))
        expendable.push_back(checkpoint);
    } catch (const Error&) {
      // Not complete, or of a newer tutti: not ours to judge.
    }
  }
  return expendable;
}

void remove_checkpoints(const std::vector<fs::path>& checkpoints)
{
  for (const fs::path& checkpoint : checkpoints) {
    remove_file(checkpoint);
    remove_file(verified_marker(checkpoint));
  }
}

}  // namespace tutti::detail
