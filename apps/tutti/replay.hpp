// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti incident replay`: makes the attempt of an incident again on one rank, as far as the named
// rank had part in it, and says what it was.
#pragma once

#include <cstdint>
#include <string>

#include "agreement.hpp"

namespace tutti::apps {

struct ReplayRequest {
  std::string file;        ///< the incident, or a folder: its newest
  std::string checkpoint;  ///< in place of the incident's own; empty: that one
  std::string data;        ///< in place of the run's folder of images; empty: that one
  bool json = false;
  std::uint64_t steps = 1000;  ///< at most so many of the run are made again
};

/// Collective over MPI_COMM_WORLD, which must have one rank. The answer goes to standard output,
/// its last line is the finding. Throws Refusal when the incident cannot be made again.
ExitCode replay(const ReplayRequest& request);

}  // namespace tutti::apps
