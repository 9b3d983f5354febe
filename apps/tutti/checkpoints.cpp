// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Finding a checkpoint and reading its configuration on rank 0, for all ranks.
#include "checkpoints.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "agreement.hpp"
#include "tutti/checkpoint.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/topology.hpp"

namespace tutti::apps {

FoundCheckpoint find_checkpoint(const std::string& which, const std::string& folder, MPI_Comm world,
                                const std::string& passed_over)
{
  FoundCheckpoint found;
  if (which == "latest" || which == "auto") {
    const bool may_start = which == "auto" && passed_over.empty();
    Topology topology(world);  // only to ask with: the degrees of the run are not known yet
    collectively(world, [&] {
      const auto path = latest_checkpoint(folder, topology, &found.refused, passed_over);
      if (path) found.path = path->string();
      if (path || (may_start && found.refused.empty())) return;
      if (!passed_over.empty())
        throw IoError(fmt::format(
            "checkpoint-dir {} holds no good checkpoint (none of step-*.h5 could be restored, {} "
            "was the last; the reasons stand above); give a file, or start anew",
            folder, found.refused.empty() ? passed_over : found.refused.back()));
      throw ConfigError(fmt::format(
          "checkpoint-dir {} holds no complete checkpoint ({}); {} to start anew", folder,
          found.refused.empty() ? "no file step-*.h5"
                                : fmt::format("{}", fmt::join(found.refused, ", and ")),
          may_start ? "move its files away" : "leave --resume out"));
    });
    topology.close();
    if (found.path.empty()) return found;
  } else {
    found.path = which;
  }
  int rank = 0;
  check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  collectively(world, [&] {
    if (rank != 0) return;
    if (std::error_code ignored; !std::filesystem::exists(found.path, ignored))
      throw ConfigError(fmt::format(
          "checkpoint {} cannot be opened (no such file); give an existing file, or latest with "
          "--checkpoint-dir",
          found.path));
    found.configuration = checkpoint_configuration(found.path);
  });
  broadcast_text(world, found.path, 0);
  broadcast_text(world, found.configuration, 0);
  return found;
}

}  // namespace tutti::apps
