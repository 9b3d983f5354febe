// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What asks a run to end before its last step: a signal, a file, or the end of the job's time. That
// all ranks leave at the same boundary is the ballot's matter, and what is saved the trainer's.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "train_config.hpp"

namespace tutti::apps {

class StopRequest {
 public:
  /// With a checkpoint folder, SIGTERM and SIGUSR1 ask for a stop from here on to the end of the
  /// process, so that another one while it saves or finalizes changes nothing. Without one nothing
  /// could be saved, and signals keep their meaning. `speaks`: this rank also looks for the stop
  /// file and at the clock; the time of --walltime begins here.
  StopRequest(const TrainConfig& config, bool speaks);
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// From here on these ask for a stop, whatever the configuration.
  static void catch_signals(std::initializer_list<int> numbers);

  /// Whether this rank asks for a stop: called before every attempt.
  bool asked();
  /// The attempt has ended, with all that belongs to it but for a save.
  void attempted();
  /// A save took so long. Until the first one, its time is guessed from the bytes of the state.
  void saved(double seconds);
  void guess_save(double state_bytes);

  /// Seconds from the decision to stop to the end of the job: one more attempt and a save, or two
  /// where one may be under way in the background, with a margin.
  double needed() const;

  /// Collective, after an attempt in which some rank asked: why, as the lowest of them says it.
  std::string agreed_reason(MPI_Comm world) const;

 private:
  std::string find_reason(double at);
  double elapsed() const;

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool on_signals_ = false, saved_once_ = false;
  std::string file_;
  double end_ = std::numeric_limits<double>::infinity();  ///< of the job, seconds from start_
  double next_look_ = 0;                                  ///< for the file
  double saves_ = 1;                                      ///< to wait for at the end
  double asked_at_ = 0, longest_attempt_ = 0, longest_save_ = 0;
  std::string reason_;  ///< of this rank, once it asks
};

}  // namespace tutti::apps
