// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti incident ls | show`: looking at what a run recorded of the attempts that it did not
// commit. Results go to standard output. Needs no MPI.
#pragma once

#include <string>

#include "agreement.hpp"

namespace tutti::apps {

struct IncidentRequest {
  std::string action;  ///< "ls" or "show"
  std::string path;    ///< folder or file
  bool json = false;
};

/// The text of the answer. A folder in place of a file means its newest incident. Throws IoError.
std::string incident_text(const IncidentRequest& request);

}  // namespace tutti::apps
