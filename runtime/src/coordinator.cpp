// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The step boundary. `Coordinator::step` is the protocol from the closed window to the folded
// verdict; what it decides is in decide.cpp, what it moves is in the participants.
#include "tutti/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "all_or_throw.hpp"
#include "guarded.hpp"
#include "incident_report.hpp"
#include "suspect_window.hpp"
#include "tutti/digest.hpp"
#include "tutti/fp_environment.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/step_machine.hpp"

namespace tutti {
namespace {

void validate(const std::vector<Participant*>& participants, const CoordinatorOptions& options)
{
  for (std::size_t i = 0; i < participants.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (participants[i]->name() == participants[j]->name())
        throw InvalidArgument(fmt::format(
            "optimizers {} and {} are both named '{}' (checkpoints and incidents tell them apart "
            "by name); give each a name of its own",
            j, i, participants[i]->name()));
  const auto refuse_unless = [](bool holds, const char* what, double value, const char* range) {
    if (!holds)
      throw InvalidArgument(
          fmt::format("{} = {} is refused (not {}); give a value in range", what, value, range));
  };
  const auto positive = [](double value) { return value > 0 && std::isfinite(value); };
  const Policy& policy = options.policy;
  const LossScaling& scaling = policy.scaling;
  refuse_unless(options.window_samples > 0, "window samples", 0, "at least 1");
  refuse_unless(options.micro_batches > 0, "micro-batches", 0, "at least 1");
  refuse_unless(policy.max_norm >= 0, "max_norm", policy.max_norm, ">= 0");
  refuse_unless(policy.max_skip_rate >= 0 && policy.max_skip_rate <= 1, "max_skip_rate",
                policy.max_skip_rate, "in [0, 1]");
  refuse_unless(policy.skip_window >= 1 && policy.skip_window <= 64, "skip_window",
                static_cast<double>(policy.skip_window), "in [1, 64]");
  const LearningRateSchedule& schedule = policy.schedule;
  refuse_unless(schedule.kind == ScheduleKind::constant || schedule.horizon > 0, "schedule horizon",
                0, "at least 1, where the rate decays");
  refuse_unless(schedule.final_factor >= 0 && schedule.final_factor <= 1, "final factor",
                schedule.final_factor, "in [0, 1]");
  if (!scaling.enabled) return;
  refuse_unless(positive(scaling.initial), "initial loss scale", scaling.initial, "finite and > 0");
  refuse_unless(scaling.growth_factor >= 1 && std::isfinite(scaling.growth_factor), "growth factor",
                scaling.growth_factor, "finite and >= 1");
  refuse_unless(scaling.backoff_factor > 0 && scaling.backoff_factor <= 1, "back-off factor",
                scaling.backoff_factor, "in (0, 1]");
  refuse_unless(scaling.growth_interval > 0, "growth interval", 0, "at least 1");
  refuse_unless(scaling.minimum >= 0 && scaling.minimum <= scaling.initial, "minimum loss scale",
                scaling.minimum, "between 0 and the initial one");
  refuse_unless(scaling.maximum == 0 || scaling.maximum >= scaling.initial, "maximum loss scale",
                scaling.maximum, "0 or at least the initial one");
}

/// Seconds since the last lap, added to one phase after the other.
class Laps {
 public:
  Laps() : last_(MPI_Wtime()) {}
  void add_to(double& phase)
  {
    const double now = MPI_Wtime();
    phase += now - last_;
    last_ = now;
  }

 private:
  double last_;
};

}  // namespace

// --- Window ------------------------------------------------------------------------------------

Interval Window::positions(std::uint32_t micro) const
{
  return positions(micro, coordinator_->topology_.data_rank());
}

Interval Window::positions(std::uint32_t micro, int data_rank) const
{
  return part(data_rank).part(micro, micro_batches_);
}

Interval Window::part(int data_rank) const
{
  return interval_.part(static_cast<std::uint64_t>(data_rank),
                        static_cast<std::uint64_t>(coordinator_->topology_.data_parallel()));
}

double Window::gradient_scale() const { return loss_scale_ / static_cast<double>(nominal_); }

void Window::add_micro_batch(double loss_sum, std::uint64_t samples)
{
  const detail::FloatingPointGuard ieee;
  if (next_micro_ >= micro_batches_)
    throw InvalidArgument(
        fmt::format("micro-batch {} does not fit into the window (it has {}); call step() first",
                    next_micro_, micro_batches_));
  samples_ += samples;
  micro_losses_.push_back({loss_sum, samples});
  coordinator_->take_micro_batch(*this);
  loss_sum_ += micro_losses_.back().sum;
  ++next_micro_;
}

void Window::fail(std::int64_t code, const std::string& text)
{
  if (failure_.exists()) return;
  failure_ = {static_cast<std::uint32_t>(Phase::window),
              static_cast<std::uint32_t>(coordinator_->topology_.rank()), code};
  failure_text_ = text;
}

// --- construction ------------------------------------------------------------------------------

Coordinator::Coordinator(const Topology& topology, std::vector<Participant*> participants,
                         CoordinatorOptions options)
    : topology_(topology), participants_(std::move(participants)), options_(std::move(options))
{
  Policy& policy = options_.policy;
  policy.participants = participants_.size() * static_cast<std::uint64_t>(topology.size());
  policy.betas.clear();
  for (const Participant* participant : participants_)
    for (std::size_t p = 0; p < participant->parameters(); ++p)
      policy.betas.push_back(participant->betas(p));

  // The length of the ballot and the agreed number of participants must be equal before the first
  // ballot.
  const std::array<std::uint64_t, 2> mine = {participants_.size(), policy.betas.size()};
  std::array<std::uint64_t, 4> range = {mine[0], mine[1], ~mine[0], ~mine[1]};
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, range.data(), 4, MPI_UINT64_T, MPI_MIN, topology.world()),
            "MPI_Allreduce of the number of participants");
  if (range[0] != ~range[2] || range[1] != ~range[3])
    throw InvalidArgument(fmt::format(
        "ranks disagree on what is trained ({} to {} optimizers, {} to {} parameters); give every "
        "rank the same optimizers, a rank may own nothing but takes part in each",
        range[0], ~range[2], range[1], ~range[3]));
  detail::all_or_throw<InvalidArgument>(topology.world(),
                                        [&] { validate(participants_, options_); });
  agreed_configuration_ = mix64(policy.hash(), options_.configuration_hash);
  for (const std::uint64_t word :
       {options_.window_samples, std::uint64_t{options_.micro_batches}, options_.epoch_samples})
    agreed_configuration_ = mix64(agreed_configuration_, word);
  if (options_.recompute) {  // collective, so all have it or none
    agreed_configuration_ = mix64(agreed_configuration_, hash_of("recompute"));
    accounts_.resize(static_cast<std::size_t>(topology.size()) *
                     SuspectWindow::AccountWords().size());
  }
  for (const Participant* participant : participants_) {
    agreed_configuration_ = mix64(agreed_configuration_, participant->configuration_hash());
    agreed_plan_ = mix64(agreed_plan_, participant->plan_hash());
  }
  has_gradient_.resize(policy.betas.size());
  control_ = initial_state(policy, options_.epoch_samples);
  transport_ = make_mpi_transport(topology.world(), has_gradient_.size());
}

Coordinator::~Coordinator() = default;

void Coordinator::close() { transport_->close(); }

void Coordinator::require_usable(const char* call) const
{
  if (broken_)
    throw InvalidArgument(
        fmt::format("{} is refused (an MPI call failed before); end the job", call));
  if (halted_)
    throw InvalidArgument(fmt::format(
        "{} is refused (the run has halted); restart from a committed checkpoint", call));
}

CommittedBoundary Coordinator::boundary() const
{
  require_usable("a committed boundary");
  if (window_open_)
    throw InvalidArgument(
        "a committed boundary is refused (a window is open); hand the window to step() first");
  CommittedBoundary boundary;
  boundary.control_ = &control_;
  boundary.participants_ = &participants_;
  boundary.topology_ = &topology_;
  boundary.configuration_hash_ = options_.configuration_hash;
  return boundary;
}

void Coordinator::resume(const ControlState& control)
{
  require_usable("resume");
  if (window_open_)
    throw InvalidArgument("resume is refused (a window is open); resume before the first window");
  if (control.clocks.size() != has_gradient_.size())
    throw CheckpointError(
        fmt::format("control state does not fit (it has {} parameters, the run {}); resume with "
                    "the same optimizers",
                    control.clocks.size(), has_gradient_.size()));
  control_ = control;
}

// --- the window --------------------------------------------------------------------------------

std::vector<const Fault*> Coordinator::firing(FaultKind kind) const
{
  return options_.faults.firing(kind, topology_.rank(), control_.step, control_.attempt + 1);
}

void Coordinator::reach(Phase phase) const
{
  options_.faults.reach(phase, topology_.rank(), control_.step, control_.attempt + 1);
}

void Coordinator::enter(Phase phase, std::uint32_t micro) const noexcept
{
  if (options_.watchdog != nullptr)
    options_.watchdog->enter(phase, control_.step, control_.attempt + 1, micro);
}

void Coordinator::wait() const noexcept
{
  if (options_.watchdog != nullptr) options_.watchdog->wait();
}

void Coordinator::progress()
{
  if (options_.watchdog != nullptr) options_.watchdog->progress();
}

void Coordinator::reach_in_save(Phase phase, std::uint64_t step, std::uint64_t attempt) const
{
  if (options_.watchdog != nullptr) options_.watchdog->enter(phase, step, attempt);
  options_.faults.reach(phase, topology_.rank(), step, attempt);
  wait();  // the rest of a phase is spent in collectives
}

bool Coordinator::digests_due(std::uint64_t step) const
{
  const std::uint64_t every = options_.policy.digest_every;
  return every != 0 && step % every == 0;
}

void Coordinator::track_save(std::uint64_t id, std::function<SaveReport()> report)
{
  require_usable("a background save");
  if (window_open_ || control_.pending_save != 0 || id == 0)
    throw InvalidArgument(
        "a background save is refused (a window is open, or one is in flight already); start one "
        "at a committed boundary");
  control_.pending_save = id;
  save_report_ = std::move(report);
}

void Coordinator::note_checkpoint(std::string path, std::uint64_t step)
{
  checkpoint_ = std::move(path);
  checkpoint_step_ = step;
}

void Coordinator::forget_save()
{
  control_.pending_save = 0;
  save_report_ = {};
}

Window Coordinator::open_window()
{
  require_usable("a window");
  if (window_open_) throw InvalidArgument("a window is open already; hand it to step() first");
  Window window;
  window.coordinator_ = this;
  window.step_ = control_.step;
  window.nominal_ = options_.window_samples;
  window.interval_ = control_.ledger.window(options_.window_samples);
  window.micro_batches_ = options_.micro_batches;
  window.loss_scale_ = control_.loss_scale;
  window_open_ = true;
  enter(Phase::window, 0);
  detail::guarded(Phase::window, topology_.rank(), window.failure_, window.failure_text_, [&] {
    window.micro_losses_.reserve(window.micro_batches_);
    for (Participant* participant : participants_) participant->open();
    for (const Fault* fault : firing(FaultKind::bitflip))
      for (std::size_t i = 0; i < participants_.size(); ++i)
        if (fault->optimizer.value_or(i) == i)
          participants_[i]->inject_bitflip(fault->parameter, fault->element, fault->bit);
    for (const Fault* fault : firing(FaultKind::state))
      for (std::size_t i = 0; i < participants_.size(); ++i)
        if (fault->optimizer.value_or(i) == i)
          participants_[i]->inject_state(fault->parameter, fault->element, fault->value);
  });
  return window;
}

void Coordinator::take_micro_batch(Window& window)
{
  enter(Phase::window, window.next_micro_);
  detail::guarded(Phase::window, topology_.rank(), window.failure_, window.failure_text_,
                  [&] { accumulate(window.next_micro_, window.micro_losses_.back().sum, false); });
  const std::uint32_t next = window.next_micro_ + 1;
  enter(Phase::window, next < window.micro_batches_ ? next : ~0u);
}

void Coordinator::accumulate(std::uint32_t micro, double& loss_sum, bool again)
{
  const auto fires = [&](const Fault* fault) {
    return fault->micro == micro && (fault->permanent || !again);
  };
  for (const Fault* fault : firing(FaultKind::nonfinite))
    for (std::size_t i = 0; i < participants_.size(); ++i)
      if (fires(fault) && fault->optimizer.value_or(i) == i)
        participants_[i]->inject_gradient(fault->parameter, fault->element, fault->value);
  for (const Fault* fault : firing(FaultKind::loss))
    if (fires(fault)) loss_sum = fault->value;
  for (Participant* participant : participants_) participant->accumulate(micro);
}

// --- the step ----------------------------------------------------------------------------------

/// One attempt on its way through the protocol: a function for each action of the StepMachine, in
/// its order. Local work runs guarded, so that all ranks reach the same collectives whatever
/// happens on one of them.
class Coordinator::Attempt {
 public:
  Attempt(Coordinator& coordinator, Window& window)
      : c_(coordinator),
        policy_(coordinator.options_.policy),
        window_(window),
        machine_(policy_, coordinator.control_, window.interval_),
        failure_(window.failure_),
        text_(std::move(window.failure_text_)),
        scale_faults_(coordinator.firing(FaultKind::scale)),
        update_faults_(coordinator.firing(FaultKind::update))
  {
  }

  Action action() const { return machine_.action(); }

  void exchange()
  {
    std::fill(c_.has_gradient_.begin(), c_.has_gradient_.end(), 0);
    locally(Phase::window, [&] {
      for (Participant* participant : c_.participants_) participant->close();
    });
    c_.wait();
    for (Participant* participant : c_.participants_) participant->exchange();
    locally(Phase::exchange, [&] { inspect(); });
    machine_.finished();
  }

  void vote()
  {
    locally(Phase::ballot, [&] {
      for (const Fault* fault : scale_faults_) c_.control_.loss_scale *= fault->factor;
      // What is certain to be needed after the last vote is had before the first one.
      c_.next_control_ = c_.control_;
      c_.next_control_.make_room();
    });
    fill_agreement_and_loss();
    ballot_.failure = failure_;
    c_.wait();
    c_.transport_->combine(ballot_, c_.has_gradient_);
    machine_.voted(ballot_);
    decided_failure_ = ballot_.failure;
    failed_here_ = failure_;
    failure_ = {};
    samples_ = std::max<std::uint64_t>(ballot_.samples, 1);
    norm_ = ballot_.nonfinite != 0
                ? std::numeric_limits<double>::quiet_NaN()
                : gradient_norm(ballot_, window_.loss_scale_, window_.nominal_, samples_);
    clip_ = ballot_.nonfinite != 0 ? 1 : clip_factor(norm_, policy_.max_norm);
  }

  void stage()
  {
    Update update;
    update.grad_factor = clip_ *
                         (static_cast<double>(window_.nominal_) / static_cast<double>(samples_)) /
                         window_.loss_scale_;
    update.clip = clip_;
    update.learning_rate_factor = policy_.schedule.factor(c_.control_.step);
    update.mode = policy_.update;
    update.digests = c_.digests_due(c_.control_.step + 1);
    locally(Phase::stage, [&] {
      for (const Fault* fault : update_faults_)
        for (std::size_t i = 0; i < c_.participants_.size(); ++i)
          if (fault->optimizer.value_or(i) == i) c_.participants_[i]->inject_overflow();
      std::size_t first = 0;
      for (Participant* participant : c_.participants_) {
        const std::size_t count = participant->parameters();
        update.clocks = std::span(c_.control_.clocks).subspan(first, count);
        update.has_gradient = std::span(c_.has_gradient_).subspan(first, count);
        participant->stage(update);
        first += count;
      }
    });
    machine_.finished();
  }

  void gather()
  {
    c_.wait();
    for (Participant* participant : c_.participants_) {
      participant->gather();
      if (c_.digests_due(c_.control_.step + 1)) participant->gather_digests();
    }
    locally(Phase::gather, [] {});
    machine_.finished();
  }

  void confirm()
  {
    const auto rank = static_cast<std::uint32_t>(c_.topology_.rank());
    confirm_.attempt = Agreement(c_.control_.attempt, rank);
    locally(Phase::confirm, [&] {
      for (std::size_t i = 0; i < c_.participants_.size(); ++i) {
        Confirm own;
        c_.participants_[i]->confirm(own);
        own.offender.participant = static_cast<std::uint32_t>(i);
        confirm_.nonfinite += own.nonfinite;
        confirm_.nonfinite_state += own.nonfinite_state;
        if (own.offender.exists()) confirm_.offender = std::min(confirm_.offender, own.offender);
      }
      confirm_.participants = c_.participants_.size();
    });
    confirm_.failure = failure_;
    c_.wait();
    c_.transport_->combine(confirm_);
    machine_.confirmed(confirm_);
    decided_failure_ = confirm_.failure;
    failed_here_ = failure_;
  }

  void publish() noexcept
  {
    c_.enter(Phase::publish);
    c_.reach(Phase::publish);
    for (Participant* participant : c_.participants_) participant->publish();
    machine_.finished();
  }

  void discard() noexcept
  {
    for (Participant* participant : c_.participants_) participant->discard();
    machine_.finished();
  }

  /// Folds the verdict and says what it was based on.
  Outcome finish()
  {
    Outcome outcome;
    outcome.attempt = c_.control_.attempt + 1;
    outcome.verdict = machine_.verdict();
    outcome.window = window_.interval_;
    outcome.samples = ballot_.samples;
    outcome.ranks_with_nonfinite_loss = ballot_.nonfinite_losses;
    outcome.loss = ballot_.nonfinite_losses != 0
                       ? std::numeric_limits<double>::quiet_NaN()
                       : ballot_.loss.value() / static_cast<double>(samples_);
    outcome.loss_scale = window_.loss_scale_;
    outcome.grad_norm = norm_;
    outcome.clip = clip_;
    outcome.learning_rate_factor = policy_.schedule.factor(c_.control_.step);
    outcome.nonfinite = ballot_.nonfinite + confirm_.nonfinite;
    outcome.offender = std::min(ballot_.offender, confirm_.offender);
    outcome.failure = decided_failure_;
    outcome.stop_requested = ballot_.stop_requests != 0;
    if (!outcome.committed()) record(outcome);
    if (outcome.verdict.kind != VerdictKind::halt)
      c_.next_control_ =
          std::exchange(c_.control_, machine_.fold(std::move(c_.next_control_), c_.has_gradient_));
    if (c_.save_report_ && ballot_.saves_pending == 0) {
      outcome.save_failure = ballot_.save_failure;
      outcome.save = ballot_.save_failure.exists() ? SaveState::failed : SaveState::done;
      c_.forget_save();
    } else if (c_.save_report_) {
      outcome.save = SaveState::pending;
    }
    outcome.step = c_.control_.step;
    outcome.skip_rate = c_.control_.skip_rate(policy_.skip_window);
    return outcome;
  }

 private:
  template <class Work>
  void locally(Phase phase, Work&& work)
  {
    c_.locally(phase, failure_, text_, work);
  }

  void inspect()
  {
    std::size_t first = 0;
    for (std::size_t i = 0; i < c_.participants_.size(); ++i) {
      Participant& participant = *c_.participants_[i];
      const std::size_t count = participant.parameters();
      Ballot own;
      participant.inspect(own, std::span(c_.has_gradient_).subspan(first, count));
      if (c_.digests_due(c_.control_.step)) participant.inspect_replicas(own);
      own.replica.participant = own.replica.exists() ? static_cast<std::uint32_t>(i) : ~0u;
      ballot_.replica_faults += own.replica_faults;
      ballot_.replica = std::min(ballot_.replica, own.replica);
      own.offender.participant = static_cast<std::uint32_t>(i);
      ballot_.nonfinite += own.nonfinite;
      ballot_.nonfinite_state += own.nonfinite_state;
      ballot_.largest_finite = std::max(ballot_.largest_finite, own.largest_finite);
      ballot_.sum_of_squares.add(own.sum_of_squares);
      if (own.offender.exists()) ballot_.offender = std::min(ballot_.offender, own.offender);
      first += count;
    }
    ballot_.sum_of_squares.normalize();
  }

  /// Not guarded: it only reads integers, and a rank that failed must still agree on all the rest.
  void fill_agreement_and_loss() noexcept
  {
    const auto rank = static_cast<std::uint32_t>(c_.topology_.rank());
    const ControlState& control = c_.control_;
    const auto agree = [&](AgreedField field, std::uint64_t value) {
      ballot_.agreed[static_cast<std::size_t>(field)] = Agreement(value, rank);
    };
    agree(AgreedField::step, control.step);
    agree(AgreedField::attempt, control.attempt);
    agree(AgreedField::loss_scale, std::bit_cast<std::uint64_t>(control.loss_scale));
    agree(AgreedField::learning_rate,
          std::bit_cast<std::uint64_t>(policy_.schedule.factor(control.step)));
    agree(AgreedField::configuration, c_.agreed_configuration_);
    agree(AgreedField::shard_plan, c_.agreed_plan_);
    agree(AgreedField::control_state, control.digest());
    ballot_.participants = c_.participants_.size();
    ballot_.stop_requests = window_.stop_ ? 1 : 0;
    if (c_.save_report_) {
      const SaveReport save = c_.save_report_();
      if (save.state == SaveState::pending) ballot_.saves_pending = 1;
      if (save.state == SaveState::failed)
        ballot_.save_failure = {static_cast<std::uint32_t>(Phase::save_payload), rank, save.code};
    }

    const bool finite_loss = is_finite_loss(window_.loss_sum_);
    if (!finite_loss) {
      ballot_.nonfinite_losses = 1;
      Offender loss;
      loss.stage = static_cast<std::uint32_t>(Stage::loss);
      loss.micro = ~0u;  // finite ones whose sum is not
      loss.rank = rank;
      double value = window_.loss_sum_;
      for (std::size_t micro = window_.micro_losses_.size(); micro-- > 0;) {
        const double sum = window_.micro_losses_[micro].sum;
        if (is_finite_loss(sum)) continue;
        loss.micro = static_cast<std::uint32_t>(micro);
        value = sum;
      }
      loss.value_bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      loss.count = 1;
      ballot_.offender = std::min(ballot_.offender, loss);
    }
    if (c_.topology_.model_rank() == 0) {  // the model-parallel peers computed the same samples
      ballot_.samples = window_.samples_;
      if (finite_loss) ballot_.loss.add(window_.loss_sum_);
      ballot_.loss.normalize();
    }
  }

  // --- a bad verdict -----------------------------------------------------------------------------

  /// Collective: the incident, made and written by the rank that knows most, told to all. The
  /// gradients are still there.
  void record(Outcome& outcome)
  {
    detail::Circumstances at{c_.topology_,
                             c_.participants_,
                             c_.options_,
                             c_.control_,
                             ballot_,
                             window_,
                             samples_,
                             c_.checkpoint_,
                             c_.checkpoint_step_,
                             failed_here_.exists() ? std::move(text_) : std::string(),
                             {}};
    if (c_.options_.watchdog != nullptr) c_.options_.watchdog->resume();
    const int rank = detail::speaker(at, outcome);
    const bool speaks = rank == c_.topology_.rank();
    Incident incident;
    std::vector<NamedArray> arrays;
    const auto noting = [&](auto&& work) {
      try {
        work();
      } catch (const MpiError&) {
        throw;
      } catch (const std::exception& error) {
        incident.write_error = error.what();
      }
    };
    noting([&] { incident = detail::known_to_all(at, outcome); });
    if (speaks)
      noting([&] {
        for (const auto& micro : window_.micro_losses_)
          at.micro_losses.push_back(micro.sum / static_cast<double>(micro.samples));
        detail::add_own_facts(at, outcome, incident, arrays);
      });
    SuspectWindow suspect(c_, window_);
    if (c_.options_.recompute && suspect.is_to_blame(outcome))
      incident.recomputation = suspect.compute_again(static_cast<int>(outcome.offender.rank));
    std::string text;
    noting([&] {
      incident.message = detail::message_of(at, outcome, incident);
      if (!speaks) return;
      if (!c_.options_.incident_dir.empty() && c_.incidents_ < c_.options_.incident_limit)
        write_incident(incident, arrays, c_.options_.incident_dir);
      text = to_json(incident);
    });
    c_.wait();
    c_.transport_->share(text, rank);
    ++c_.incidents_;
    // Without a text the speaker, or this rank, has no memory: then it is what all know.
    noting([&] {
      if (!text.empty()) incident = incident_from_json(text);
    });
    noting([&] {
      outcome.incident = std::make_shared<const Incident>(std::move(incident));
      outcome.message = outcome.incident->message;
    });
  }

  Coordinator& c_;
  const Policy& policy_;
  Window& window_;
  StepMachine machine_;
  Ballot ballot_;
  Confirm confirm_;
  Failure failure_, failed_here_, decided_failure_;
  std::string text_;
  std::vector<const Fault*> scale_faults_, update_faults_;
  std::uint64_t samples_ = 1;
  double norm_ = 0, clip_ = 1;
};

Outcome Coordinator::step(Window& window)
{
  // Losses, norms and factors must not depend on the caller's rounding mode or flush to zero.
  const detail::FloatingPointGuard ieee;
  require_usable("step");
  if (!window_open_ || window.coordinator_ != this)
    throw InvalidArgument("step needs the open window (there is none); call open_window() first");
  window_open_ = false;
  times_ = {};
  broken_ = true;  // until the step has ended: only a failing MPI call leaves it early
  Attempt attempt(*this, window);
  Laps laps;
  while (attempt.action() != Action::done) {
    switch (attempt.action()) {
      case Action::exchange:
        attempt.exchange();
        laps.add_to(times_.exchange);
        break;
      case Action::vote:
        attempt.vote();
        laps.add_to(times_.ballot);
        break;
      case Action::stage:
        attempt.stage();
        laps.add_to(times_.stage);
        break;
      case Action::gather:
        attempt.gather();
        laps.add_to(times_.gather);
        break;
      case Action::confirm:
        attempt.confirm();
        laps.add_to(times_.confirm);
        break;
      case Action::publish:
        attempt.publish();
        laps.add_to(times_.publish);
        break;
      case Action::discard:
        attempt.discard();
        break;
      case Action::done:
        break;
    }
  }
  Outcome outcome = attempt.finish();
  if (options_.watchdog != nullptr) options_.watchdog->leave();
  broken_ = false;
  halted_ = outcome.verdict.kind == VerdictKind::halt;
  if (halted_) throw Halt(outcome.message, outcome);
  return outcome;
}

}  // namespace tutti
