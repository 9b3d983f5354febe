// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Outcomes as JSON, and the files that they go to.
#include "run_log.hpp"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "tutti/error.hpp"

namespace tutti::apps {

const char* name_of_kind(VerdictKind kind)
{
  switch (kind) {
    case VerdictKind::commit:
      return "commit";
    case VerdictKind::skip:
      return "skip";
    case VerdictKind::halt:
      break;
  }
  return "halt";
}

nlohmann::json to_json(const Outcome& o, double learning_rate,
                       const std::vector<Participant*>& participants)
{
  nlohmann::json line = {
      {"step", o.step},
      {"attempt", o.attempt},
      {"verdict", name_of_kind(o.verdict.kind)},
      {"reason", name_of(o.verdict.reason)},
      {"window", {o.window.begin, o.window.end}},
      {"samples", o.samples},
      {"loss", o.loss},
      {"ranks_with_nonfinite_loss", o.ranks_with_nonfinite_loss},
      {"scale", o.loss_scale},
      {"grad_norm", o.grad_norm},
      {"clip", o.clip},
      {"lr", learning_rate * o.learning_rate_factor},
      {"nonfinite", o.nonfinite},
      {"skip_rate", o.skip_rate},
  };
  if (o.offender.exists()) {
    const Offender& f = o.offender;
    const float value = std::bit_cast<float>(f.value_bits);
    nlohmann::json& offender = line["offender"];
    offender = {{"stage", name_of(static_cast<Stage>(f.stage))},
                {"rank", f.rank},
                {"value", std::isnan(value)   ? "nan"
                          : std::isinf(value) ? (value > 0 ? "inf" : "-inf")
                                              : fmt::format("{}", value)},
                {"count", f.count}};
    if (f.micro != ~0u) offender["micro"] = f.micro;
    if (f.parameter != ~0u && f.participant < participants.size()) {
      offender["optimizer"] = participants[f.participant]->name();
      offender["parameter"] = participants[f.participant]->parameter_name(f.parameter);
      offender["element"] = f.element;
    }
  }
  if (o.failure.exists())
    line["failure"] = {{"phase", name_of(static_cast<Phase>(o.failure.phase))},
                       {"rank", o.failure.rank},
                       {"code", o.failure.code}};
  if (!o.message.empty()) line["message"] = o.message;
  if (o.incident && !o.incident->file.empty()) line["incident"] = o.incident->file;
  if (o.incident && !o.incident->write_error.empty())
    line["incident_error"] = o.incident->write_error;
  return line;
}

std::string incident_note(const Outcome& o)
{
  if (!o.incident) return {};
  if (!o.incident->write_error.empty())
    return fmt::format("; the incident is not written whole ({})", o.incident->write_error);
  return o.incident->file.empty() ? "" : fmt::format("; incident {}", o.incident->file);
}

RunLog::RunLog(const std::string& path, int rank, bool append) : path_(path)
{
  const std::string place = "{rank}";
  const std::size_t at = path_.find(place);
  if (at != std::string::npos)
    path_.replace(at, place.size(), std::to_string(rank));
  else if (rank != 0)
    path_.clear();
  if (path_.empty()) return;
  errno = 0;
  file_.open(path_, append ? std::ios::app : std::ios::trunc);
  if (!file_)
    throw ConfigError(fmt::format("log {} cannot be written ({}); give another --log", path_,
                                  std::strerror(errno)));
}

void RunLog::write(const nlohmann::json& line)
{
  if (path_.empty()) return;
  errno = 0;
  file_ << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  if (!file_)
    throw IoError(fmt::format("log {} cannot be written ({}); make room and resume", path_,
                              std::strerror(errno)));
}

namespace {

/// Where a file is written before it gets its name; a pipe or a device is written to as it is.
std::string place_to_write(const std::string& path)
{
  std::error_code ignored;
  const bool replaces =
      !std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored);
  return replaces ? path + ".tmp" : path;
}

}  // namespace

void write_text_file(const std::string& path, const std::string& text)
{
  const std::string place = place_to_write(path);
  errno = 0;
  std::ofstream file(place, std::ios::trunc);
  file << text;
  file.close();
  if (!file || (place != path && std::rename(place.c_str(), path.c_str()) != 0)) {
    const std::string why = std::strerror(errno);
    if (place != path) std::remove(place.c_str());
    throw IoError(fmt::format("file {} cannot be written ({}); give another path", path, why));
  }
}

void require_writable(const std::string& path, const std::string& option)
{
  if (path.empty()) return;
  const std::string place = place_to_write(path);
  if (place == path && !std::filesystem::is_directory(path)) return;
  errno = 0;
  if (std::ofstream file(place, std::ios::trunc); !file)
    throw ConfigError(fmt::format("{0} {1} cannot be written ({2}); give another --{0}", option,
                                  path, std::strerror(errno)));
  std::remove(place.c_str());
}

}  // namespace tutti::apps
