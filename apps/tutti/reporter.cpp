// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Lines on standard error.
#include "reporter.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "run_log.hpp"

namespace tutti::apps {

using std::chrono::duration;
using std::chrono::steady_clock;

Reporter::Reporter(bool speaks, bool json, std::uint64_t every, std::uint64_t steps)
    : speaks_(speaks),
      json_(json),
      terminal_(speaks && !json && isatty(STDERR_FILENO) == 1),
      every_(every),
      steps_(steps),
      start_(steady_clock::now()),
      last_(start_)
{
}

void Reporter::end_line()
{
  if (open_line_) std::fputc('\n', stderr);
  open_line_ = false;
}

void Reporter::say(const char* level, const std::string& message)
{
  if (!speaks_) return;
  end_line();
  const std::string line = json_ ? nlohmann::json{{"level", level}, {"message", message}}.dump(
                                       -1, ' ', false, nlohmann::json::error_handler_t::replace)
                                 : "tutti: " + message;
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Reporter::note(const std::string& message) { say("info", message); }
void Reporter::warn(const std::string& message) { say("warning", message); }

void Reporter::attempt(const Outcome& outcome, double next_scale, std::uint64_t skips)
{
  if (!speaks_) return;
  const auto now = steady_clock::now();
  if (first_step_ == ~std::uint64_t{0}) {
    first_step_ = outcome.step - (outcome.committed() ? 1 : 0);
    start_ =
        now;  // rates are from the end of the first attempt on: what comes before it is start-up
  } else if (outcome.committed()) {
    samples_ += outcome.samples;
  }
  if (!outcome.committed())
    say("warning",
        (outcome.loss_scale == next_scale ? outcome.message
                                          : fmt::format("{}; loss scale {} -> {}", outcome.message,
                                                        outcome.loss_scale, next_scale)) +
            incident_note(outcome));
  const bool last = outcome.step >= steps_;
  if (terminal_ ? !last && now - last_ < std::chrono::milliseconds(100)
                : outcome.attempt % every_ != 0 && !last)
    return;
  last_ = now;
  const double elapsed = std::max(1e-9, duration<double>(now - start_).count());
  const double done = static_cast<double>(outcome.step - first_step_);
  const double left =
      done > 1 ? elapsed / (done - 1) * static_cast<double>(steps_ - std::min(steps_, outcome.step))
               : 0;
  const double rate = static_cast<double>(samples_) / elapsed;
  if (json_) {
    std::fprintf(stderr, "%s\n",
                 nlohmann::json{{"level", "progress"},
                                {"step", outcome.step},
                                {"attempt", outcome.attempt},
                                {"loss", outcome.loss},
                                {"scale", next_scale},
                                {"skips", skips},
                                {"samples_per_second", rate},
                                {"seconds_left", left}}
                     .dump()
                     .c_str());
    return;
  }
  const std::string line =
      fmt::format("step {}/{}  loss {:.4f}  scale {:g}  skips {}  {:.0f} samples/s  {:.0f} s left",
                  outcome.step, steps_, outcome.loss, next_scale, skips, rate, left);
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
    open_line_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

}  // namespace tutti::apps
