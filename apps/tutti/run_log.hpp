// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The record of a run: one JSON object an attempt, and the names by which outcomes go into JSON.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tutti/coordinator.hpp"

namespace tutti::apps {

/// "commit", "skip" or "halt".
const char* name_of_kind(VerdictKind kind);

/// One attempt: step (committed updates after it), attempt, verdict, reason, window (sample
/// positions), samples, loss (mean over all samples of the window; null when a rank's own was
/// nonfinite), ranks_with_nonfinite_loss, scale, grad_norm (null when not finite), clip, lr,
/// nonfinite, skip_rate, and offender, failure, message and incident (its file) where there is one.
nlohmann::json to_json(const Outcome& outcome, double learning_rate,
                       const std::vector<Participant*>& participants);

/// "; incident FILE", why there is none, or nothing.
std::string incident_note(const Outcome& outcome);

/// Writes lines to a file; a path with {rank} gives every rank a file of its own, else rank 0
/// writes.
class RunLog {
 public:
  /// An empty path writes nothing. `append`: the run is resumed. Throws ConfigError if the file
  /// cannot be opened.
  RunLog(const std::string& path, int rank, bool append);
  /// Throws IoError when the line could not be written.
  void write(const nlohmann::json& line);

 private:
  std::string path_;
  std::ofstream file_;
};

/// Replaces a small text file as a whole: written under another name, then renamed. Throws IoError.
void write_text_file(const std::string& path, const std::string& text);

/// Throws ConfigError if write_text_file could not write the file that `--option` names, so that
/// it is known before the work whose result it shall hold. An empty path: there is none.
void require_writable(const std::string& path, const std::string& option);

}  // namespace tutti::apps
