// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which checkpoint of a directory to go on from. One rank looks; the others hear its answer, so the
// number of files that are opened and looked at does not grow with the job.
#include <fstream>
#include <nlohmann/json.hpp>

#include "contents.hpp"
#include "directory.hpp"
#include "hdf5.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;

}  // namespace

std::optional<fs::path> latest_checkpoint(const fs::path& directory, const Topology& topology,
                                          std::vector<std::string>* refused,
                                          const fs::path& older_than)
{
  const QuietHdf5 quiet;
  std::string answer;
  on_rank_zero(topology.world(), [&] {
    std::vector<std::string> names = files_by_step(directory);
    std::string pointed;
    std::ifstream pointer(directory / "latest");
    if (names.empty() && older_than.empty() && std::getline(pointer, pointed) && !pointed.empty())
      names.push_back(pointed);
    if (!older_than.empty()) {
      const std::string limit = older_than.filename().string();
      std::erase_if(names, [&](const std::string& name) { return !is_older_step(name, limit); });
    }
    std::string found;
    std::vector<std::string> reasons;
    for (const std::string& name : names) {
      try {
        read_contents(directory / name);
        found = (directory / name).string();
        break;
      } catch (const Error& error) {
        reasons.push_back(error.what());
      }
    }
    answer = nlohmann::json{{"found", found}, {"refused", reasons}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  });
  broadcast_text(topology.world(), answer, 0);
  const nlohmann::json heard = nlohmann::json::parse(answer);
  if (refused != nullptr)
    for (const nlohmann::json& reason : heard.at("refused"))
      refused->push_back(reason.get<std::string>());
  const auto found = heard.at("found").get<std::string>();
  return found.empty() ? std::nullopt : std::optional<fs::path>(found);
}

std::optional<RestoredLatest> restore_latest(const fs::path& directory, const Topology& topology,
                                             std::span<Participant* const> participants,
                                             const RestoreOptions& options,
                                             std::vector<std::string>* refused)
{
  fs::path tried;
  for (;;) {
    const auto file = latest_checkpoint(directory, topology, refused, tried);
    if (!file) return std::nullopt;
    std::string reason;
    try {
      return RestoredLatest{*file, restore_checkpoint(*file, topology, participants, options)};
    } catch (const DamagedCheckpoint& damage) {
      reason = damage.what();
    } catch (const IoError& failure) {
      reason = failure.what();
    }
    if (refused != nullptr) refused->push_back(reason);
    tried = *file;
  }
}

}  // namespace tutti
