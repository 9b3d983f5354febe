// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which checkpoint of a directory to go on from. One rank looks; the others hear its answer.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint_files.hpp"
#include "format.hpp"
#include "hdf5.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/error.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;

}  // namespace

std::optional<fs::path> latest_checkpoint(const fs::path& directory, const Topology& topology,
                                          std::vector<std::string>* refused)
{
  const QuietHdf5 quiet;
  std::string answer;
  on_rank_zero(topology.world(), [&] {
    std::vector<std::string> names = files_by_step(directory);
    std::string pointed;
    std::ifstream pointer(directory / "latest");
    if (names.empty() && std::getline(pointer, pointed) && !pointed.empty())
      names.push_back(pointed);
    std::string found;
    std::vector<std::string> reasons;
    for (const std::string& name : names) {
      try {
        read_metadata(directory / name);
        found = (directory / name).string();
        break;
      } catch (const Error& error) {
        reasons.push_back(error.what());
      }
    }
    answer = nlohmann::json{{"found", found}, {"refused", reasons}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  });
  broadcast(topology.world(), answer);
  const nlohmann::json heard = nlohmann::json::parse(answer);
  if (refused != nullptr) heard.at("refused").get_to(*refused);
  const auto found = heard.at("found").get<std::string>();
  return found.empty() ? std::nullopt : std::optional<fs::path>(found);
}

}  // namespace tutti
