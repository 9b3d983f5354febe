// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the command does with the watchdog's reports: it prints them, ends a job that hangs, and
// lets a death be told before the launcher ends the survivors.
#pragma once

#include <memory>

#include "tutti/watchdog.hpp"

namespace tutti::apps {

/// Collective over the topology. While it lives, a SIGTERM whose default nobody else has replaced
/// is held back until the watchdog has looked for a dead rank.
class Watch {
 public:
  Watch(const Topology& topology, double seconds);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Watchdog& watchdog() { return *watchdog_; }

 private:
  std::unique_ptr<Watchdog> watchdog_;
  bool holds_signal_ = false;
};

}  // namespace tutti::apps
