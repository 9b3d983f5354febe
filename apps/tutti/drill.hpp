// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti drill`: runs planned faults as real jobs on the user's own machine, and checks that each
// comes to what it must.
#pragma once

#include <string>
#include <vector>

#include "agreement.hpp"

namespace tutti::apps {

struct DrillRequest {
  std::vector<std::string> names;  ///< patterns of the shell; empty: all
  bool list = false;
  std::string junit;  ///< file for the result as JUnit XML; empty: none
  /// What starts ranks; "{ranks}" stands for their number.
  std::string launcher = "mpirun -n {ranks}";
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string keep;     ///< folder for what the jobs say and write; empty: a temporary one
  double seconds = 60;  ///< limit of one job
};

/// Without MPI: the jobs have it. `command`: what is told on standard output. Throws ConfigError
/// for names that no drill has and for a launcher that cannot be started. Interrupted by SIGINT or
/// SIGTERM it ends its job first.
ExitCode drill(const DrillRequest& request);

}  // namespace tutti::apps
