// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reports to standard error, one write each, since other ranks speak at the same time.
#include "watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>

#include "agreement.hpp"

namespace tutti::apps {
namespace {

std::atomic<Watchdog*> watched{nullptr};

extern "C" void tell_watchdog(int)
{
  if (Watchdog* const watchdog = watched.load()) watchdog->terminating();
}

void report_loss(int speaker, const LossReport& report)
{
  const std::string line = fmt::format("tutti: [rank {}] {}\n", speaker, report.message);
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  // The other threads may be inside MPI for ever: no destructor may run.
  if (report.kind == LossReport::Kind::stalled) ::_exit(static_cast<int>(ExitCode::hung));
}

}  // namespace

Watch::Watch(const Topology& topology, double seconds)
{
  WatchdogOptions options;
  options.seconds = seconds;
  options.on_lost = [rank = topology.rank()](const LossReport& report) {
    report_loss(rank, report);
  };
  options.on_terminated = [] {
    std::signal(SIGTERM, SIG_DFL);
    ::kill(::getpid(), SIGTERM);
  };
  watchdog_ = std::make_unique<Watchdog>(topology, std::move(options));
  struct sigaction present {};
  if (!watchdog_->running() || ::sigaction(SIGTERM, nullptr, &present) != 0 ||
      present.sa_handler != SIG_DFL)
    return;
  watched = watchdog_.get();
  struct sigaction action {};
  action.sa_handler = &tell_watchdog;
  action.sa_flags = SA_RESTART;
  holds_signal_ = ::sigaction(SIGTERM, &action, nullptr) == 0;
}

Watch::~Watch()
{
  struct sigaction present {};
  if (holds_signal_ && ::sigaction(SIGTERM, nullptr, &present) == 0 &&
      present.sa_handler == &tell_watchdog)
    std::signal(SIGTERM, SIG_DFL);
  watched = nullptr;
}

}  // namespace tutti::apps
