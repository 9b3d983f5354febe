// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which checkpoint of a directory to go on from. One rank looks; the others hear its answer.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "format.hpp"
#include "hdf5.hpp"
#include "posix_file.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/error.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;

bool is_checkpoint_name(const std::string& name)
{
  return name.size() > 8 && name.starts_with("step-") && name.ends_with(".h5") &&
         std::all_of(name.begin() + 5, name.end() - 3, [](char c) { return c >= '0' && c <= '9'; });
}

/// Names of files of steps, the highest step first.
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
  // More digits are a higher step: names are padded, but only to twelve.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  return names;
}

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
