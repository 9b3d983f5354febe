// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a run says on standard error: rank 0 speaks for all, as text or as one JSON object a line.
// Results do not go here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tutti/coordinator.hpp"

namespace tutti::apps {

class Reporter {
 public:
  /// `speaks`: this rank does. `json`: one object a line. `every`: attempts between progress lines
  /// in a batch log.
  Reporter(bool speaks, bool json, std::uint64_t every, std::uint64_t steps);
  ~Reporter() { end_line(); }
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void note(const std::string& message);
  void warn(const std::string& message);
  /// A progress line when one is due (a terminal: one updating line), and a line of its own for
  /// each skip.
  void attempt(const Outcome& outcome, double next_scale, std::uint64_t skips);

 private:
  void say(const char* level, const std::string& message);
  void end_line();
  bool speaks_, json_, terminal_, open_line_ = false;
  std::uint64_t every_, steps_, first_step_ = ~std::uint64_t{0}, samples_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace tutti::apps
