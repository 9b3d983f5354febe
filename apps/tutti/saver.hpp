// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// When a run saves, at once or in the background, and what becomes of a save that fails. Writing is
// in io/.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "reporter.hpp"
#include "stop_request.hpp"
#include "train_config.hpp"
#include "tutti/checkpoint_save.hpp"
#include "tutti/coordinator.hpp"

namespace tutti::apps {

/// All functions are collective over the topology. Where a save fails they throw Refusal on all
/// ranks, or warn if the run is to go on without it (--on-checkpoint-error).
class Saver {
 public:
  /// `configuration`: JSON text for the checkpoints. All
  /// references must outlive it. `stop` learns how long a save takes.
  Saver(const TrainConfig& config, std::string configuration, const Topology& topology,
        Coordinator& coordinator, StopRequest& stop, Reporter& reporter);

  /// The present step is on disk already: the run was resumed from there.
  void resumed() { saved_attempt_ = coordinator_.control().attempt; }
  /// After each attempt: ends a background save that has ended, and saves when it is due.
  void after_attempt(const Outcome& outcome);
  /// At the end of the run: waits for the save in flight, and saves the last step unless the run
  /// has halted. False if that step could not be saved.
  bool finish(bool halted);

 private:
  bool is_due();
  void save(bool background);
  void note_saved(const std::string& path);
  void end_background_save(const std::function<std::filesystem::path()>& end);
  void guarded(const std::function<void()>& work);
  bool enabled() const { return !config_.checkpoint_dir.empty(); }

  const TrainConfig& config_;
  const Topology& topology_;
  Coordinator& coordinator_;
  StopRequest& stop_;
  Reporter& reporter_;
  bool background_, go_on_;
  std::uint64_t boundary_step_ = 0, boundary_attempt_ = 0;  ///< of the last save, for faults
  /// Of the last save on disk. Not its step: after a skipped attempt the control state is newer.
  std::uint64_t saved_attempt_ = ~std::uint64_t{0};
  std::string begun_;  ///< how the save in flight began, for its note
  bool due_ = false;
  std::chrono::steady_clock::time_point last_begin_ = std::chrono::steady_clock::now();
  CheckpointWriter writer_;
};

}  // namespace tutti::apps
