// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The watchdog of a run of the command, and the SIGTERM that it holds back.
#include "watch.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "launcher.hpp"

namespace tutti::apps {
namespace {

std::atomic<Watchdog*> watched{nullptr};

extern "C" void tell_watchdog(int)
{
  if (Watchdog* const watchdog = watched.load()) watchdog->terminating();
}

}  // namespace

Watch::Watch(const Topology& topology, double seconds)
{
  WatchdogOptions options;
  options.seconds = seconds;
  options.launcher = launcher_process();
  options.on_lost = [rank = topology.rank()](const LossReport& report) {
    tell_and_end(rank, report);
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
