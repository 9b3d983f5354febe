// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What `tutti drill` runs: planned faults, and what a run with each must come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tutti::apps {

/// A short job with one planned fault.
struct Drill {
  std::string name;  ///< "nonfinite/exchange/bf16/rank2/replay"; folders of the catalogue
  int ranks = 4;
  std::vector<std::string> flags;   ///< of `tutti train`
  std::vector<std::string> faults;  ///< each for one --fault

  // What it must come to.
  /// 4, after a stall, is the watchdog's. mpirun passes it on; a launcher that has its own for a
  /// rank that it had to kill (srun) may end with that.
  int exit_code = 0;
  std::uint64_t attempt = 0;  ///< the one that is not committed; 0: none is looked at
  std::string verdict, reason;
  /// Fields that its incident must have; "/a/b" is a field in a field.
  nlohmann::json incident = nlohmann::json::object();
  /// Flags of a run whose state and samples it must end with; empty: the end is not compared.
  std::vector<std::string> ends_as;
  /// It is started again without the fault and with --resume auto, and that run ends so.
  bool resumes = false;
  std::vector<std::string> said;  ///< on standard error
};

/// `inputs`: pixels of an image, on which the expected elements depend, but no name.
std::vector<Drill> drill_catalogue(std::size_t inputs);

/// Cells that do not exist, and why; for people.
std::vector<std::string> drills_left_out();

}  // namespace tutti::apps
