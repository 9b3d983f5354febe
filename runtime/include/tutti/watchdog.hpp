// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Who is missing when the others wait: a thread on each rank that watches a board of progress in
// memory of its node, and the processes of its node. It makes no MPI call and ends nothing: it says
// what it saw.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/topology.hpp"
#include "tutti/verdict.hpp"

namespace tutti {

/// A rank that does not come any more, as a rank of its node saw it.
struct LossReport {
  enum class Kind : std::uint8_t {
    stalled,    ///< `rank` stands still while others wait
    dead,       ///< the process of `rank` has ended
    elsewhere,  ///< all ranks of this node wait; the missing one is on another node
    orphaned,   ///< the launcher of `rank`, which is the one that says so, has ended
  };
  Kind kind = Kind::stalled;
  int rank = -1;
  long pid = 0;         ///< of `rank`, or of the launcher; 0: not known
  std::string place;    ///< where it was last seen: "phase exchange of step 3 (attempt 4), ..."
  double seconds = 0;   ///< since it last moved
  std::string message;  ///< one sentence for people
};

/// An action for `on_lost` of a program that has none of its own: writes `tutti: [rank <speaker>]
/// <message>` to standard error, in one write since other ranks speak at the same time, and ends
/// the process with exit code 4 after a stall, and when the launcher is gone, without destructors:
/// its other threads may be inside MPI for ever. After a death the launcher ends the job.
void tell_and_end(int speaker, const LossReport& report);

struct WatchdogOptions {
  double seconds = 300;  ///< how long somebody waits, and the missing one stands still
  /// Called on the watchdog's thread of one rank of a node, once for each loss. May end the
  /// process.
  std::function<void(const LossReport&)> on_lost;
  /// Called on the watchdog's thread after `terminating()`, once it has looked for the dead.
  std::function<void()> on_terminated;
  /// Test knob: at most this many consecutive ranks of a node count as one; 0 is no limit.
  int node_ranks = 0;
  /// The process that started this rank and ends the job when a rank dies; 0: none. When it has
  /// ended itself, each rank is told so: not every MPI ends the ranks of a launcher that was
  /// killed, and then nothing ends those that wait for each other.
  long launcher = 0;
};

/// An alarm needs both: some rank of the node has waited in a collective for `seconds` without
/// moving, and another one outside of any collective stands still as long. A rank that is slow but
/// moves raises none; long phases of the caller's own call `progress()` more often than that. Where
/// a node cannot see who waits (no rank of it does, and there are other nodes) the alarm takes
/// twice as long. Deaths are noticed at once.
class Watchdog {
 public:
  /// Collective over topology.world(). Where the board cannot be made, or MPI was started without
  /// threads, nothing is watched on any rank, and `description()` says why. `topology` need not
  /// outlive it.
  Watchdog(const Topology& topology, WatchdogOptions options);
  /// Local: this rank leaves the board; whatever becomes of its process is no loss any more.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  bool running() const;
  const std::string& description() const;

  /// This rank has come to `phase`. Like wait(), leave() and progress() a few stores; calls from
  /// other threads than the one that made the watchdog do nothing.
  void enter(Phase phase, std::uint64_t step, std::uint64_t attempt,
             std::uint32_t micro = ~0u) noexcept;
  /// It waits for others in a collective of its phase.
  void wait() noexcept;
  /// It has them, and goes on in the same phase: after a collective of the caller's own.
  void resume() noexcept;
  /// It is on its own way, outside of any phase.
  void leave() noexcept;
  /// It moves.
  void progress() noexcept;

  /// Safe in a signal handler: this process was told to end. A launcher does so when another rank
  /// has died; the thread looks for that, reports it, and calls on_terminated.
  void terminating() noexcept;
  /// Whether a process of this node was found dead.
  bool peer_lost() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
