// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Incidents as people read them.
#include "incident_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tutti/error.hpp"
#include "tutti/incident.hpp"

namespace tutti::apps {
namespace {

namespace fs = std::filesystem;

std::string where(const Incident& i)
{
  if (!i.failure_phase.empty()) return fmt::format("failure in {}", i.failure_phase);
  if (!i.mismatch.empty()) return fmt::format("{} differs", i.mismatch);
  if (i.parameter.empty()) return i.stage.empty() ? "-" : i.stage;
  return fmt::format("{}/{}[{}]{}", i.optimizer, i.parameter, i.element,
                     i.stage.empty() ? "" : " at " + i.stage);
}

std::string list(const fs::path& directory)
{
  std::string text = fmt::format("{:>8} {:>8}  {:<5} {:<17} {:>5}  {:<40} {}\n", "attempt", "step",
                                 "", "reason", "rank", "where", "file");
  for (const fs::path& file : list_incidents(directory)) {
    try {
      const Incident i = read_incident(file);
      text += fmt::format("{:>8} {:>8}  {:<5} {:<17} {:>5}  {:<40} {}\n", i.attempt, i.step,
                          i.verdict, i.reason, i.rank, where(i), file.filename().string());
    } catch (const IoError& error) {
      text += fmt::format("cannot be read: {}\n", error.what());
    }
  }
  return text;
}

/// Lines of a name and what it says; empty ones are left out.
class Lines {
 public:
  void add(const char* name, const std::string& value)
  {
    if (!value.empty()) text_ += fmt::format("  {:<19}{}\n", name, value);
  }
  std::string text_;
};

std::string show(const Incident& i)
{
  Lines lines;
  lines.text_ = i.message + "\n";
  lines.add("attempt", fmt::format("{} (after {} committed steps): {}, {}", i.attempt, i.step,
                                   i.verdict, i.reason));
  lines.add("stage", i.stage);
  if (!i.parameter.empty()) {
    lines.add("parameter", fmt::format("{}/{}", i.optimizer, i.parameter));
    lines.add("element", fmt::format("{}", i.element));
  }
  if (i.replica_block) lines.add("block", fmt::format("{}", *i.replica_block));
  if (!i.stage.empty())
    lines.add("value",
              fmt::format("{} (fp32 bits {:08x}){}, {} of that parameter on that rank", i.value,
                          i.value_bits, i.array.empty() ? "" : " in " + i.array, i.count));
  lines.add("node", i.node);
  lines.add("rank", fmt::format("{}{}", i.rank,
                                i.contributor_known ? "" : " (its owner; MPI made the sum)"));
  if (i.micro) lines.add("micro-batch", fmt::format("{}", *i.micro));
  if (!i.stage.empty())
    lines.add("nonfinite", i.before_synchronization ? "on that rank, before any exchange"
                                                    : "only after ranks were put together");
  if (i.magnitude)
    lines.add("gradient there", fmt::format("{} in magnitude, unscaled", *i.magnitude));
  lines.add("largest finite", fmt::format("{} (unscaled, all ranks)", i.largest_finite));
  lines.add("loss scale", fmt::format("{}", i.loss_scale));
  if (!i.micro_losses.empty())
    lines.add("micro-batch losses", fmt::format("{}", fmt::join(i.micro_losses, ", ")));
  if (!i.precision.forward.empty())
    lines.add("precision", fmt::format("forward {}, gradients {}, wire {}, master {}, update {}",
                                       i.precision.forward, i.precision.gradients, i.precision.wire,
                                       i.precision.master, i.precision.arithmetic));
  lines.add("window", fmt::format("positions {} to {}", i.window.begin, i.window.end));
  if (!i.positions.empty())
    lines.add("that rank's", fmt::format("positions {} to {}", i.positions.begin, i.positions.end));
  if (!i.sample_ids.empty()) {
    const std::size_t shown = std::min<std::size_t>(i.sample_ids.size(), 16);
    const std::vector<std::uint64_t> first(i.sample_ids.begin(),
                                           i.sample_ids.begin() + static_cast<long>(shown));
    lines.add("samples", fmt::format("{}{}", fmt::join(first, ", "),
                                     shown < i.sample_ids.size()
                                         ? fmt::format(", ... ({})", i.sample_ids.size())
                                         : ""));
  }
  if (i.recomputation) lines.add("computed again", explain(*i.recomputation));
  if (i.repeats > 1) lines.add("repeats", fmt::format("{} times in this window", i.repeats));
  if (!i.failure_phase.empty())
    lines.add("failure", fmt::format("{} (phase {}, code {})", i.failure_text, i.failure_phase,
                                     i.failure_code));
  if (!i.mismatch.empty())
    lines.add("mismatch",
              fmt::format("{}: {:#x} to {:#x}", i.mismatch, i.mismatch_least, i.mismatch_greatest));
  lines.add("checkpoint", i.checkpoint.empty()
                              ? "none"
                              : fmt::format("{} (step {})", i.checkpoint, i.checkpoint_step));
  if (!i.array_files.empty())
    lines.add("arrays", fmt::format("{}", fmt::join(i.array_files, ", ")));
  lines.add("not written", i.write_error);
  return lines.text_;
}

}  // namespace

fs::path incident_file(const std::string& path)
{
  if (std::error_code ignored; !fs::is_directory(path, ignored)) return path;
  const std::vector<fs::path> files = list_incidents(path);
  if (files.empty())
    throw IoError(
        fmt::format("folder {} holds no incident (no file incident-*.json); give the "
                    "--incident-dir of a run",
                    path));
  return files.back();
}

std::string incident_text(const IncidentRequest& request)
{
  if (request.action == "ls") return list(request.path);
  const Incident incident = read_incident(incident_file(request.path));
  return request.json ? to_json(incident) + "\n" : show(incident);
}

}  // namespace tutti::apps
