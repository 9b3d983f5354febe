// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti incident ls | show`: looking at what a run recorded of the attempts that it did not
// commit. Results go to standard output. Needs no MPI.
#pragma once

#include <filesystem>
#include <string>

#include "agreement.hpp"

namespace tutti::apps {

struct IncidentRequest {
  std::string action;  ///< "ls" or "show"
  std::string path;    ///< folder or file
  bool json = false;
};

/// The incident that a path means: the file, or the newest of a folder. Throws IoError.
std::filesystem::path incident_file(const std::string& path);

/// The text of the answer. A folder in place of a file means its newest incident. Throws IoError.
std::string incident_text(const IncidentRequest& request);

}  // namespace tutti::apps
