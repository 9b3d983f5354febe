// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A thread that judges, writes and syncs one rank's payload, and what is known of it meanwhile. It
// calls neither MPI nor HDF5.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "payload.hpp"
#include "tutti/ballot.hpp"

namespace tutti::detail {

class BackgroundWrite {
 public:
  /// Without `threads` all is done before it returns. Throws std::system_error when there is no
  /// thread to be had.
  BackgroundWrite(std::shared_ptr<Payload> payload, bool threads);
  BackgroundWrite(const BackgroundWrite&) = delete;
  BackgroundWrite& operator=(const BackgroundWrite&) = delete;
  ~BackgroundWrite();  ///< waits for the thread, unless it was left

  SaveReport report() const noexcept;
  /// True if the work has ended by then, well or not.
  bool ended_by(std::chrono::steady_clock::time_point deadline) const;
  /// Waits for the end, and throws what went wrong.
  void join();
  /// The payload was given up: waits for its thread at most so long. One that hangs in the file
  /// system is then left to itself; it only touches memory that it shares in.
  void leave(std::chrono::seconds patience);

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tutti::detail
