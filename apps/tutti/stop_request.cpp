// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Signals, the stop file and the clock.
#include "stop_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tutti/first_text.hpp"

namespace tutti::apps {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr double margin = 1.5;
constexpr double leaving_seconds = 2;  // for the clock's whole seconds, the summary and MPI's end
constexpr double slow_disk = 1e8;      // bytes a second, until a save was seen

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

void note_signal(int number) { received_signal = number; }

/// Seconds from now to the end that Slurm plans for the job; infinity where it does not say. An end
/// in the past is another job's: the environment was handed on.
double seconds_left_by_slurm()
{
  const double never = std::numeric_limits<double>::infinity();
  const char* text = std::getenv("SLURM_JOB_END_TIME");
  if (text == nullptr) return never;
  std::int64_t end = 0;
  const char* stop = text + std::strlen(text);
  if (const auto [at, error] = std::from_chars(text, stop, end); error != std::errc{} || at != stop)
    return never;
  const double now = duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double left = static_cast<double>(end) - now;
  return left > 0 ? left : never;
}

}  // namespace

void StopRequest::catch_signals(std::initializer_list<int> numbers)
{
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // a write of a checkpoint goes on
  sigemptyset(&action.sa_mask);
  for (const int number : numbers) sigaction(number, &action, nullptr);
}

StopRequest::StopRequest(const TrainConfig& config, bool speaks)
    : on_signals_(!config.checkpoint_dir.empty())
{
  if (!on_signals_) return;
  catch_signals({SIGTERM, SIGUSR1});
  if (!speaks) return;
  if (config.checkpoint_async == "on") saves_ = 2;
  file_ = config.stop_file;
  end_ = config.walltime > 0 ? config.walltime : seconds_left_by_slurm();
}

double StopRequest::elapsed() const
{
  return duration<double>(steady_clock::now() - start_).count();
}

bool StopRequest::asked()
{
  asked_at_ = elapsed();
  if (reason_.empty()) reason_ = find_reason(asked_at_);
  return !reason_.empty();
}

void StopRequest::attempted()
{
  longest_attempt_ = std::max(longest_attempt_, elapsed() - asked_at_);
}

std::string StopRequest::find_reason(double at)
{
  if (const int number = received_signal; on_signals_ && number != 0)
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : "SIGUSR1";
  if (!file_.empty() && at >= next_look_) {
    next_look_ = at + 1;
    if (std::error_code ignored; std::filesystem::exists(file_, ignored))
      return fmt::format("{} is there", file_);
  }
  if (end_ - at < needed())
    return fmt::format("needs {:.0f} s, {:.0f} s left", std::ceil(needed()), std::floor(end_ - at));
  return {};
}

void StopRequest::saved(double seconds)
{
  longest_save_ = saved_once_ ? std::max(longest_save_, seconds) : seconds;
  saved_once_ = true;
}

void StopRequest::guess_save(double state_bytes)
{
  if (!saved_once_) longest_save_ = state_bytes / slow_disk;
}

double StopRequest::needed() const
{
  return margin * (longest_attempt_ + saves_ * longest_save_) + leaving_seconds;
}

std::string StopRequest::agreed_reason(MPI_Comm world) const
{
  std::string reason = reason_;
  int has_one = reason.empty() ? 0 : 1;
  const int first = first_text(world, has_one, reason);
  if (first < 0) return "unknown";  // cannot be: the ballot counted somebody
  return first == 0 ? reason : fmt::format("rank {}: {}", first, reason);
}

}  // namespace tutti::apps
