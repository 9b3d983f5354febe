// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Finding a checkpoint and reading its configuration on rank 0, for all ranks.
#include "checkpoints.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <optional>

#include "agreement.hpp"
#include "tutti/checkpoint.hpp"
#include "tutti/checkpoint_file.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/topology.hpp"

namespace tutti::apps {

namespace fs = std::filesystem;

namespace {

/// Nothing for a file that no run could go on from.
std::optional<std::uint64_t> step_of(const fs::path& path)
{
  try {
    return CheckpointFile(path).step();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

FoundCheckpoint find_checkpoint(const std::string& which, const std::string& checkpoint_dir,
                                MPI_Comm world, const std::string& passed_over)
{
  FoundCheckpoint found;
  int rank = 0;
  check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  std::string folder = which == "latest" || which == "auto" ? checkpoint_dir : "";
  if (std::error_code ignored; rank == 0 && folder.empty() && fs::is_directory(which, ignored))
    folder = which;
  broadcast_text(world, folder, 0);
  found.is_newest = !folder.empty();
  if (found.is_newest) {
    const bool may_start = which == "auto" && passed_over.empty();
    Topology topology(world);  // only to ask with: the degrees of the run are not known yet
    collectively(world, [&] {
      const auto path = latest_checkpoint(folder, topology, &found.refused, passed_over);
      if (path) found.path = path->string();
      if (path || (may_start && found.refused.empty())) return;
      if (!passed_over.empty())
        throw IoError(fmt::format(
            "folder {} holds no good checkpoint (none of step-*.h5 could be restored, {} "
            "was the last; the reasons stand above); give a file, or start anew",
            folder, found.refused.empty() ? passed_over : found.refused.back()));
      throw ConfigError(
          fmt::format("folder {} holds no complete checkpoint ({}); {} to start anew", folder,
                      found.refused.empty() ? "no file step-*.h5"
                                            : fmt::format("{}", fmt::join(found.refused, ", and ")),
                      may_start ? "move its files away" : "leave the option out"));
    });
    topology.close();
    if (found.path.empty()) return found;
  } else {
    found.path = which;
  }
  collectively(world, [&] {
    if (rank != 0) return;
    if (std::error_code ignored; !fs::exists(found.path, ignored))
      throw ConfigError(fmt::format(
          "checkpoint {} cannot be opened (no such file); give an existing file, or a folder of "
          "checkpoints",
          found.path));
    found.configuration = checkpoint_configuration(found.path);
  });
  broadcast_text(world, found.path, 0);
  broadcast_text(world, found.configuration, 0);
  return found;
}

void refuse_used_folder(const std::string& folder, const std::string& begins_with, MPI_Comm world)
{
  int rank = 0;
  check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  collectively(world, [&] {
    if (rank != 0) return;
    const std::uint64_t step = begins_with.empty() ? 0 : CheckpointFile(begins_with).step();
    for (const fs::path& path : checkpoint_files(folder)) {
      const std::optional<std::uint64_t> other = step_of(path);
      if (!other) continue;
      if (*other <= step) return;
      throw ConfigError(
          fmt::format("checkpoint-dir {} is in use ({} is of a later step than {}, where this run "
                      "begins); give "
                      "another folder, or --resume latest, or move that run's later files away",
                      folder, path.filename().string(), step));
    }
  });
}

}  // namespace tutti::apps
