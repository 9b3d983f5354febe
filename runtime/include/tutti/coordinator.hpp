// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The coordinator: owns the control state and takes every attempt through the step boundary.
// `step()` reads top to bottom in the order of the protocol and is the only place where state
// changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/decide.hpp"
#include "tutti/error.hpp"
#include "tutti/fault_plan.hpp"
#include "tutti/incident.hpp"
#include "tutti/participant.hpp"
#include "tutti/topology.hpp"
#include "tutti/transport.hpp"
#include "tutti/watchdog.hpp"

namespace tutti {

/// A final verdict with what it was based on; the same bits on all ranks.
struct Outcome {
  std::uint64_t step = 0;     ///< committed updates after the attempt
  std::uint64_t attempt = 0;  ///< this attempt's number, from 1
  Verdict verdict;
  Interval window;            ///< sample positions
  std::uint64_t samples = 0;  ///< agreed number
  double loss =
      0;  ///< mean over all samples of the window; NaN if some rank's own loss was nonfinite
  std::uint64_t ranks_with_nonfinite_loss = 0;
  double loss_scale = 1;  ///< that the window's loss was multiplied by
  double grad_norm = 0;   ///< of the unscaled mean gradient before clipping; NaN when not finite
  double clip = 1;
  double learning_rate_factor = 1;
  std::uint64_t nonfinite = 0;  ///< nonfinite elements, gradients or staged values
  Offender offender;
  Failure failure;
  bool stop_requested = false;
  /// Of the background save: `done` once all ranks have written their part, `failed` as soon as
  /// none is writing any more and some rank failed (`save_failure`). Said once; then it is
  /// forgotten.
  SaveState save = SaveState::none;
  Failure save_failure;
  double skip_rate = 0;  ///< share of the last Policy::skip_window attempts, this one included
  std::string message;   ///< one sentence for people; empty on Commit
  /// Where it broke, with all that is known; nothing on Commit, nor (and no message) on a rank
  /// without memory for it.
  std::shared_ptr<const Incident> incident;
  bool committed() const { return verdict.kind == VerdictKind::commit; }
};

/// Thrown by all ranks with the same content when the run must not go on.
struct Halt : Error {
  Halt(const std::string& message, Outcome o)
      : Error(ErrorCode::halt, message), outcome(std::move(o))
  {
  }
  Outcome outcome;
};

class Coordinator;

/// One attempt's window as this rank sees it. Not collective; handed to `step()`.
class Window {
 public:
  std::uint64_t step() const { return step_; }
  Interval interval() const { return interval_; }
  std::uint32_t micro_batches() const { return micro_batches_; }
  /// Sample positions of this rank's data-parallel part in micro-batch `micro`; may be empty.
  Interval positions(std::uint32_t micro) const;
  /// Those of another data-parallel rank, and in all its micro-batches together.
  Interval positions(std::uint32_t micro, int data_rank) const;
  Interval part(int data_rank) const;
  /// The loss scale; multiply the *sum* of the sample losses by gradient_scale() = scale / nominal
  /// samples before the backward pass.
  double loss_scale() const { return loss_scale_; }
  double gradient_scale() const;
  /// The gradients of the next micro-batch are in place. `loss_sum`: unscaled sum of its samples'
  /// losses; `samples`: how many. Takes them into the sum (W > 1). A failure in here becomes a
  /// flag.
  void add_micro_batch(double loss_sum, std::uint64_t samples);
  /// A failure in the caller's own code: all ranks will halt with it. The window must still be
  /// handed to step().
  void fail(std::int64_t code, const std::string& text);
  void request_stop() { stop_ = true; }

 private:
  friend class Coordinator;
  Coordinator* coordinator_ = nullptr;
  std::uint64_t step_ = 0, nominal_ = 0;
  Interval interval_;
  std::uint32_t micro_batches_ = 1, next_micro_ = 0;
  double loss_scale_ = 1;
  double loss_sum_ = 0;
  struct MicroLoss {
    double sum = 0;
    std::uint64_t samples = 0;
  };
  std::vector<MicroLoss> micro_losses_;
  std::uint64_t samples_ = 0;
  Failure failure_;
  std::string failure_text_;
  bool stop_ = false;
};

/// Proof that all ranks hold the same step with nothing in flight: what a checkpoint is made from.
class CommittedBoundary {
 public:
  const ControlState& control() const { return *control_; }
  const std::vector<Participant*>& participants() const { return *participants_; }
  const Topology& topology() const { return *topology_; }
  std::uint64_t configuration_hash() const { return configuration_hash_; }

 private:
  friend class Coordinator;
  CommittedBoundary() = default;
  const ControlState* control_ = nullptr;
  const std::vector<Participant*>* participants_ = nullptr;
  const Topology* topology_ = nullptr;
  std::uint64_t configuration_hash_ = 0;
};

struct CoordinatorOptions {
  Policy policy{};                   ///< participants and betas are filled in
  std::uint64_t window_samples = 1;  ///< B, nominal samples of a window over all ranks
  std::uint32_t micro_batches = 1;   ///< W
  std::uint64_t epoch_samples = 0;
  std::uint64_t configuration_hash = 0;  ///< of the caller's own keys that must agree
  FaultPlan faults{};
  /// Where each attempt that is not committed leaves a JSON file; empty: nowhere. A file that
  /// cannot be written stops nothing: Incident::write_error says why, on all ranks.
  std::string incident_dir{};
  std::uint64_t incident_limit = 1000;  ///< at most so many files of this run
  /// The run's configuration, a JSON object, for incidents; need not be the same on all ranks.
  std::string configuration{};
  EvidenceSource evidence{};
  /// Computes a suspect window again to tell a passing error, a machine and the data apart; given
  /// on all ranks or on none. No outcome depends on it.
  RecomputeSource recompute{};
  /// What the caller's arithmetic depends on (a device, a library's kernels): of ranks with the
  /// same text the same bits are expected.
  std::string arithmetic{};
  Watchdog* watchdog = nullptr;  ///< is told where this rank is; must outlive the coordinator
};

/// Times of the phases of the last step on this rank, seconds.
struct PhaseTimes {
  double exchange = 0, ballot = 0, stage = 0, gather = 0, confirm = 0, publish = 0;
};

class Coordinator {
 public:
  /// Collective over topology.world(). Participants must outlive it. Throws InvalidArgument on all
  /// ranks if one has options out of range, other participants than the others, or two of one name.
  Coordinator(const Topology& topology, std::vector<Participant*> participants,
              CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  const ControlState& control() const { return control_; }
  const Policy& policy() const { return options_.policy; }

  /// Not collective. Throws InvalidArgument while a window is open or after a Halt.
  Window open_window();
  /// Collective: one attempt. Returns the outcome of Commit and Skip; throws Halt on all ranks
  /// otherwise.
  Outcome step(Window& window);

  /// Throws InvalidArgument (on all ranks that call) inside a window and after a Halt.
  CommittedBoundary boundary() const;
  /// Collective: continue from a restored control state; the participants' arrays were filled
  /// before.
  void resume(const ControlState& control);

  /// Each next ballot carries what `report` says of the background save `id` (not 0) on this rank,
  /// until an outcome says how it ended. All ranks call it at the same boundary, with the same id:
  /// it is part of the control state. `report` must be safe to call while the save's thread runs,
  /// and cannot throw. Throws InvalidArgument inside a window and while another one is in flight.
  void track_save(std::uint64_t id, std::function<SaveReport()> report);
  /// The save that is in flight is waited for or given up outside of a step, by all ranks.
  void forget_save();

  /// Not collective; all ranks call it alike: the parameters of step `step` can be had from `path`.
  /// Incidents name it.
  void note_checkpoint(std::string path, std::uint64_t step);

  const std::string& noted_checkpoint() const { return checkpoint_; }
  /// Not collective: a sign of life from a long phase of the caller's own, for the watchdog.
  void progress();
  Watchdog* watchdog() const { return options_.watchdog; }
  /// For CheckpointOptions::reached, also on the thread of a background save: this rank's save of
  /// the boundary at `step` and `attempt` has come to `phase`. Tells the watchdog, and does what
  /// the fault plan has for it. Not collective.
  void reach_in_save(Phase phase, std::uint64_t step, std::uint64_t attempt) const;

  const PhaseTimes& times() const { return times_; }
  /// Collective: frees the transport.
  void close();

 private:
  friend class Window;
  class Attempt;
  class SuspectWindow;
  void require_usable(const char* call) const;
  void take_micro_batch(Window& window);
  /// Local: the gradients of a micro-batch that are in place are taken into the sum, after what the
  /// fault plan does to them and to `loss_sum`. `again`: when the window is computed again.
  void accumulate(std::uint32_t micro, double& loss_sum, bool again);
  std::vector<const Fault*> firing(FaultKind kind) const;
  void reach(Phase phase) const;
  void enter(Phase phase, std::uint32_t micro = ~0u) const noexcept;
  void wait() const noexcept;
  bool digests_due(std::uint64_t step) const;
  /// Local work of a phase, with what the fault plan has for it; what it throws becomes `failure`
  /// and `text` unless there is a failure already.
  template <class Work>
  void locally(Phase phase, Failure& failure, std::string& text, Work&& work);

  const Topology& topology_;
  std::vector<Participant*> participants_;
  CoordinatorOptions options_;
  ControlState control_;
  ControlState next_control_;  ///< what a step's fold works in, so that it needs no memory
  std::unique_ptr<Transport> transport_;
  std::vector<std::uint8_t> has_gradient_;
  std::uint64_t agreed_configuration_ = 0, agreed_plan_ = 0;  ///< what the ballots carry of them
  std::function<SaveReport()> save_report_;
  std::vector<std::uint64_t> accounts_;  ///< of all ranks, when a window is computed again
  std::string checkpoint_;
  std::uint64_t checkpoint_step_ = 0, incidents_ = 0;
  bool window_open_ = false, halted_ = false, broken_ = false;
  PhaseTimes times_;
};

}  // namespace tutti
