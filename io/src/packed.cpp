// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Metadata travels as one JSON text.
#include "packed.hpp"

#include <nlohmann/json.hpp>
#include <optional>

#include "tutti/first_text.hpp"
#include "vote.hpp"

namespace tutti::detail {
namespace {

using json = nlohmann::json;

std::string packed(const Metadata& metadata)
{
  json places = json::array();
  for (const ArrayPlace& place : metadata.places) places.push_back({place.data, place.hashes});
  return json{
      {"format_version", metadata.format_version}, {"manifest", metadata.manifest},
      {"control_state", metadata.control_state},   {"configuration", metadata.configuration},
      {"certificate", metadata.certificate},       {"places", places}}
      .dump();
}

Metadata unpacked(const std::string& text)
{
  const json in = json::parse(text);
  Metadata metadata;
  in.at("format_version").get_to(metadata.format_version);
  in.at("manifest").get_to(metadata.manifest);
  in.at("control_state").get_to(metadata.control_state);
  in.at("configuration").get_to(metadata.configuration);
  in.at("certificate").get_to(metadata.certificate);
  for (const json& place : in.at("places"))
    metadata.places.push_back({place.at(0).get<std::uint64_t>(), place.at(1).get<std::uint64_t>()});
  return metadata;
}

}  // namespace

Contents read_and_share(const std::filesystem::path& path, MPI_Comm communicator)
{
  std::string text;
  on_rank_zero(communicator, [&] { text = packed(read_contents(path).metadata); });
  broadcast_text(communicator, text, 0);
  std::string where = path.string();
  broadcast_text(communicator, where, 0);
  std::optional<Contents> contents;
  on_all_ranks(communicator, [&] { contents.emplace(where, unpacked(text)); });
  return std::move(*contents);
}

}  // namespace tutti::detail
