// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// tutti_run_*, tutti_window_* and tutti_step: from settings to a coordinator, the window that opens
// by itself, and the outcome in plain numbers.
#include <fmt/format.h>

#include <array>
#include <bit>

#include "handles.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "tutti/digest.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

using namespace tutti;
using namespace tutti::c;

// --- the object ----------------------------------------------------------------------------------

Coordinator& tutti_run_s::started(const char* call)
{
  if (state != State::started)
    throw InvalidArgument(fmt::format(
        "{} is refused ({}); {}", call,
        state == State::failed ? "tutti_run_start has failed" : "the run has not started",
        state == State::failed ? "destroy the run" : "call tutti_run_start first"));
  return *coordinator;
}

Window& tutti_run_s::open_window()
{
  Coordinator& c = started("a window");
  if (!window) {
    window = c.open_window();
    for (tutti_optimizer_s* o : optimizers) std::fill(o->given.begin(), o->given.end(), 0);
  }
  return *window;
}

void tutti_run_s::end_micro_batch()
{
  for (tutti_optimizer_s* o : optimizers) {
    for (std::size_t p = 0; o->adam && p < o->given.size(); ++p)
      if (o->given[p] == 0) o->adam->set_absent(p);
    std::fill(o->given.begin(), o->given.end(), 0);
  }
}

double tutti_run_s::compute_again(Interval positions, double gradient_scale)
{
  // The window is still there, closed; gradient calls find it so.
  for (tutti_optimizer_s* o : optimizers) std::fill(o->given.begin(), o->given.end(), 0);
  double loss_sum = 0;
  const int code = recompute(recompute_context, static_cast<int64_t>(positions.begin),
                             static_cast<int64_t>(positions.end), gradient_scale, &loss_sum);
  end_micro_batch();
  if (code != 0) throw IoError(fmt::format("the caller's recomputation ended with {}", code));
  return loss_sum;
}

std::vector<Participant*> tutti_run_s::participants() const
{
  std::vector<Participant*> all;
  for (const tutti_optimizer_s* o : optimizers) all.push_back(o->participant());
  return all;
}

void tutti_run_s::write_bound_weights()
{
  for (tutti_optimizer_s* o : optimizers) o->write_bound_weights();
}

void tutti_run_s::read_caller_state()
{
  for (tutti_optimizer_s* o : optimizers)
    if (o->own) o->own->read_caller_state();
}

// --- settings ------------------------------------------------------------------------------------

namespace {

void require_settings(const tutti_run_s& run, const char* call)
{
  if (run.state != tutti_run_s::State::settings)
    throw InvalidArgument(
        fmt::format("{} is refused (the run has started); call it before tutti_run_start", call));
}

}  // namespace

tutti_status tutti_run_create(tutti_topology topology, tutti_run* run)
{
  return guarded([&] {
    given(run, "the output for the run");
    auto object = std::make_unique<tutti_run_s>();
    object->topology = &given(topology, "the topology");
    ++topology->users;
    *run = object.release();
  });
}

tutti_status tutti_run_set_number(tutti_run run, const char* setting, double value)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    require_settings(r, "tutti_run_set_number");
    CoordinatorOptions& o = r.options;
    Policy& p = o.policy;
    std::uint64_t micro_batches = o.micro_batches;
    Setting s(text(setting, "the setting's name"), "a run");
    s.whole("window_samples", value, o.window_samples, 1);
    s.whole("micro_batches", value, micro_batches, 1, 1 << 30);
    s.whole("epoch_samples", value, o.epoch_samples);
    s.real("max_norm", value, p.max_norm);
    s.flag("loss_scaling", value, p.scaling.enabled);
    s.real("init_scale", value, p.scaling.initial, 1e-30);
    s.real("growth", value, p.scaling.growth_factor, 1);
    s.real("backoff", value, p.scaling.backoff_factor, 1e-30, 1);
    s.whole("growth_interval", value, p.scaling.growth_interval, 1);
    s.whole("hysteresis", value, p.scaling.hysteresis, 1);
    s.real("min_scale", value, p.scaling.minimum);
    s.real("max_scale", value, p.scaling.maximum);
    s.whole("max_consecutive_skips", value, p.max_consecutive_skips);
    s.whole("repeat_limit", value, p.repeat_limit);
    s.real("max_skip_rate", value, p.max_skip_rate, 0, 1);
    s.whole("skip_window", value, p.skip_window, 1, 64);
    s.whole("digest_every", value, p.digest_every);
    s.whole("warmup", value, p.schedule.warmup);
    s.whole("schedule_steps", value, p.schedule.horizon);
    s.real("final_factor", value, p.schedule.final_factor, 0, 1);
    s.whole("checkpoint_keep", value, r.checkpoint_keep);
    s.finish();
    o.micro_batches = static_cast<std::uint32_t>(micro_batches);
  });
}

tutti_status tutti_run_set_text(tutti_run run, const char* setting, const char* value)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    require_settings(r, "tutti_run_set_text");
    const std::string word = text(value, "the setting's text");
    Policy& p = r.options.policy;
    Setting s(text(setting, "the setting's name"), "a run");
    s.choice("samples", word, p.samples, {"replay", "drop"});
    s.choice("update", word, p.update, {"staged", "in_place"});
    s.choice("schedule", word, p.schedule.kind, {"constant", "linear", "cosine"});
    s.choice("checkpoint_io", word, r.checkpoint_io, {"mpiio", "skeleton"});
    s.choice("verify", word, r.verify, {"full", "sampled", "off"});
    if (s.is("configuration")) r.configuration = word;
    if (s.is("incident_dir")) r.options.incident_dir = word;
    if (s.is("fault")) r.faults.push_back(parse_fault(word));
    s.finish();
  });
}

tutti_status tutti_run_add_optimizer(tutti_run run, tutti_optimizer optimizer)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    require_settings(r, "tutti_run_add_optimizer");
    if (o.run != nullptr || o.started())
      throw InvalidArgument(fmt::format(
          "optimizer '{}' cannot be added (it is, or was, part of a run); create another", o.name));
    if (o.topology != r.topology)
      throw InvalidArgument(fmt::format(
          "optimizer '{}' cannot be added (it has another topology than the run); create both "
          "from one",
          o.name));
    r.optimizers.push_back(&o);
    o.run = &r;
  });
}

// --- the start -----------------------------------------------------------------------------------

namespace {

/// Local: what does not fit together on this rank.
void check_run(const tutti_run_s& run)
{
  const LearningRateSchedule& schedule = run.options.policy.schedule;
  if (schedule.kind != ScheduleKind::constant && schedule.horizon == 0)
    throw ConfigError("the schedule needs an end (schedule_steps is 0); set schedule_steps");
  if (run.optimizers.empty())
    throw InvalidArgument(
        "the run has no optimizer (there is nothing to step); call tutti_run_add_optimizer");
  for (const tutti_optimizer_s* o : run.optimizers) {
    if (o->parameters.size() == 0)
      throw InvalidArgument(
          fmt::format("optimizer '{}' has no parameters; call tutti_parameter_add", o->name));
    for (const BoundArray& array : o->arrays)
      for (std::size_t p = 0; p < o->parameters.size(); ++p)
        if (p >= array.values.size() || array.values[p] == nullptr)
          throw InvalidArgument(fmt::format(
              "state {} of optimizer '{}' is not whole (it is not bound for parameter '{}'); bind "
              "it for all",
              array.name, o->name, o->parameters[p].name));
  }
}

/// Collective: what must be equal before anything is built on it. The ballots repeat it.
void agree_on_run(const tutti_run_s& run, MPI_Comm world)
{
  std::uint64_t optimizers = mix64(run.optimizers.size());
  for (const tutti_optimizer_s* o : run.optimizers) {
    optimizers = mix64(mix64(optimizers, hash_of(o->name)), o->parameters.hash());
    optimizers = mix64(optimizers, o->is_adam() ? 1 : 2);
    for (const BoundArray& array : o->arrays) optimizers = mix64(optimizers, hash_of(array.name));
    const AdamOptions& a = o->options;
    for (double value : {a.learning_rate, a.beta1, a.beta2, a.epsilon, a.weight_decay, a.ema_decay})
      optimizers = mix64(optimizers, std::bit_cast<std::uint64_t>(value));
    optimizers = mix64(optimizers, (a.decoupled ? 1u : 0u) + (a.fp32_wire ? 2u : 0u));
  }
  const CoordinatorOptions& o = run.options;
  std::uint64_t settings = o.policy.hash();
  for (std::uint64_t word :
       {o.window_samples, std::uint64_t{o.micro_batches}, o.epoch_samples, run.checkpoint_keep,
        static_cast<std::uint64_t>(run.checkpoint_io), static_cast<std::uint64_t>(run.verify),
        std::bit_cast<std::uint64_t>(run.watchdog_seconds)})
    settings = mix64(settings, word);
  struct Field {
    const char* name;
    std::uint64_t value;
  };
  const std::array<Field, 3> fields = {{{"optimizers, their parameters or settings", optimizers},
                                        {"settings", settings},
                                        {"configuration", hash_of(run.configuration)}}};
  std::array<std::uint64_t, 2 * fields.size()> range;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    range[2 * i] = fields[i].value;
    range[2 * i + 1] = ~fields[i].value;
  }
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, range.data(), static_cast<int>(range.size()), MPI_UINT64_T,
                          MPI_MIN, world),
            "MPI_Allreduce of the run's settings");
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (range[2 * i] != ~range[2 * i + 1])
      throw InvalidArgument(
          fmt::format("the run cannot start (ranks disagree on its {}); give every rank the same",
                      fields[i].name));
}

/// Collective: the shard's master weights from this rank's own values, and from them all the rest.
void spread_initial_weights(tutti_optimizer_s& o, const Topology& topology)
{
  detail::on_all_ranks(topology.world(), [&] {
    const StateView view = o.adam->state();
    const SlotLayout& layout = view.plan->layout(topology.model_rank());
    const std::vector<std::uint32_t>& shard = view.plan->shard(topology.rank());
    std::vector<float> block(block_elements);
    for (std::size_t i = 0; i < shard.size(); ++i) {
      const std::uint32_t p = layout.parameter_of(shard[i]);
      const Piece& piece = layout.piece(p);
      const std::size_t begin = (shard[i] - piece.first_block) * block_elements;
      const std::size_t count = std::min(block_elements, piece.elements - begin);
      std::fill(block.begin(), block.end(), 0.0f);
      tutti_optimizer_s::Weights& weights = o.weights[p];
      Values from = weights.bound;
      if (!weights.initial.empty()) from = {weights.initial.data(), TUTTI_FP32, TUTTI_HOST};
      if (from.data != nullptr)
        copy_values({block.data(), TUTTI_FP32, TUTTI_HOST}, from, begin, count, o.device.get());
      for (const StateArray& array : view.arrays)
        if (array.name == "master" || array.name == "ema")
          o.device->copy(array.data + i * block_elements, block.data(),
                         block_elements * sizeof(float));
    }
  });
  o.adam->restored();
  for (tutti_optimizer_s::Weights& weights : o.weights) weights.initial = {};
}

/// Collective.
void build(tutti_optimizer_s& o, const tutti_run_s& run)
{
  const Topology& topology = o.topology->topology;
  detail::on_all_ranks(topology.world(), [&] { o.make_device(); });
  if (!o.is_adam()) {
    detail::on_all_ranks(topology.world(), [&] {
      o.own = std::make_unique<CallbackParticipant>(topology, o.name, o.parameters, *o.callbacks,
                                                    o.arrays, o.on_cuda ? o.device.get() : nullptr);
    });
    return;
  }
  AdamOptions& options = o.options;
  options.update = run.options.policy.update;
  options.micro_batches = run.options.micro_batches;
  options.rank_weights.resize(static_cast<std::size_t>(topology.size()));
  check_mpi(MPI_Allgather(&o.rank_weight, 1, MPI_DOUBLE, options.rank_weights.data(), 1, MPI_DOUBLE,
                          topology.world()),
            "MPI_Allgather of rank weights");
  o.adam = std::make_unique<ShardedAdam>(topology, *o.device, o.parameters, options);
  spread_initial_weights(o, topology);
}

/// Collective.
void watch(tutti_run_s& run)
{
  const Topology& topology = run.topology->topology;
  if (run.watchdog_seconds == 0 || topology.size() == 1) return;
  WatchdogOptions options;
  options.seconds = run.watchdog_seconds;
  options.on_lost = [lost = run.lost, context = run.lost_context,
                     rank = topology.rank()](const LossReport& report) {
    if (lost == nullptr) return tell_and_end(rank, report);
    const tutti_loss loss = {report.kind == LossReport::Kind::dead ? 0 : 1, report.rank, report.pid,
                             report.seconds, report.message.c_str()};
    lost(context, &loss);
  };
  run.watchdog = std::make_unique<Watchdog>(topology, std::move(options));
  if (run.watchdog->running()) run.options.watchdog = run.watchdog.get();
}

}  // namespace

tutti_status tutti_run_watch(tutti_run run, double seconds, tutti_lost lost, void* context)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    require_settings(r, "tutti_run_watch");
    if (!(seconds >= 0 && seconds <= 1e9))
      throw ConfigError(fmt::format(
          "a watchdog of {} s is refused (not a time from 0 to 1e9); give seconds, or 0 for none",
          seconds));
    r.watchdog_seconds = seconds;
    r.lost = lost;
    r.lost_context = context;
  });
}

tutti_status tutti_run_recompute(tutti_run run, tutti_recompute recompute, const char* arithmetic,
                                 void* context)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    require_settings(r, "tutti_run_recompute");
    r.recompute = recompute;
    r.recompute_context = context;
    r.options.arithmetic = arithmetic == nullptr ? "" : arithmetic;
    r.options.recompute = {};
    if (recompute != nullptr)
      r.options.recompute = [&r](Interval positions, double gradient_scale) {
        return r.compute_again(positions, gradient_scale);
      };
  });
}

tutti_status tutti_run_watched(tutti_run run, int* watched, const char** description)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    r.started("tutti_run_watched");
    if (watched != nullptr) *watched = r.options.watchdog != nullptr ? 1 : 0;
    if (description != nullptr)
      *description = r.watchdog                ? r.watchdog->description().c_str()
                     : r.watchdog_seconds == 0 ? "no watchdog (none was asked for)"
                                               : "no watchdog (the run has one rank)";
  });
}

tutti_status tutti_progress(tutti_run run)
{
  return guarded([&] { given(run, "the run").started("tutti_progress").progress(); });
}

tutti_status tutti_run_start(tutti_run run)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    require_settings(r, "tutti_run_start");
    r.state = tutti_run_s::State::failed;  // until it has not
    const MPI_Comm world = r.topology->topology.world();
    detail::on_all_ranks(world, [&] { check_run(r); });
    agree_on_run(r, world);
    for (tutti_optimizer_s* o : r.optimizers) {
      build(*o, r);
      r.options.policy.ema |= o->options.ema_decay > 0;
    }
    r.options.configuration_hash = hash_of(r.configuration);
    r.options.faults = FaultPlan(r.faults);
    r.options.configuration = r.configuration;
    watch(r);
    r.coordinator =
        std::make_unique<Coordinator>(r.topology->topology, r.participants(), r.options);
    detail::on_all_ranks(world, [&] { r.write_bound_weights(); });
    r.state = tutti_run_s::State::started;
  });
}

tutti_status tutti_run_position(tutti_run run, int64_t* step, int64_t* attempt, int64_t* samples)
{
  return guarded([&] {
    const ControlState& control = given(run, "the run").started("tutti_run_position").control();
    if (step != nullptr) *step = static_cast<int64_t>(control.step);
    if (attempt != nullptr) *attempt = static_cast<int64_t>(control.attempt);
    if (samples != nullptr) *samples = static_cast<int64_t>(control.samples);
  });
}

tutti_status tutti_run_digest(tutti_run run, uint64_t* digest)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    r.started("tutti_run_digest");
    r.read_caller_state();
    const std::vector<Participant*> participants = r.participants();
    const std::uint64_t value = state_digest(participants, r.topology->topology.world());
    if (digest != nullptr) *digest = value;
  });
}

tutti_status tutti_run_request_stop(tutti_run run)
{
  // Not guarded: nothing here may allocate, lock or touch the thread's message.
  if (run == nullptr) return TUTTI_INVALID_ARGUMENT;
  run->stop_requested.store(true, std::memory_order_relaxed);
  return TUTTI_SUCCESS;
}

tutti_status tutti_run_destroy(tutti_run* run)
{
  return guarded([&] {
    tutti_run_s* object = given(run, "the run");
    if (object == nullptr) return;
    const std::unique_ptr<tutti_run_s> owned(object);
    *run = nullptr;
    for (tutti_optimizer_s* o : object->optimizers) o->run = nullptr;
    --object->topology->users;
    const auto close = [&] {
      if (object->coordinator) object->coordinator->close();
    };
    try {
      if (object->save_in_flight()) object->finish_save();
    } catch (const MpiError&) {
      throw;
    } catch (const Error&) {
      close();
      throw;
    }
    close();
  });
}

// --- the window ----------------------------------------------------------------------------------

tutti_status tutti_window_samples(tutti_run run, int64_t micro, int64_t* begin, int64_t* end)
{
  return guarded([&] {
    given(run, "the run").in_window([&](Window& window) {
      if (micro < 0 || micro >= static_cast<int64_t>(window.micro_batches()))
        throw InvalidArgument(fmt::format("there is no micro-batch {} (a window has {}); check it",
                                          micro, window.micro_batches()));
      const Interval samples = window.positions(static_cast<std::uint32_t>(micro));
      given(begin, "the output for the first sample") = static_cast<int64_t>(samples.begin);
      given(end, "the output for the end of the samples") = static_cast<int64_t>(samples.end);
    });
  });
}

tutti_status tutti_window_scale(tutti_run run, double* loss_scale, double* gradient_scale)
{
  return guarded([&] {
    const Window& window = given(run, "the run").open_window();
    if (loss_scale != nullptr) *loss_scale = window.loss_scale();
    if (gradient_scale != nullptr) *gradient_scale = window.gradient_scale();
  });
}

tutti_status tutti_window_add(tutti_run run, double loss_sum, int64_t samples)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    r.in_window([&](Window& window) {
      if (samples < 0)
        throw InvalidArgument(
            fmt::format("{} samples are refused (negative); give their number", samples));
      r.end_micro_batch();
      window.add_micro_batch(loss_sum, static_cast<std::uint64_t>(samples));
    });
  });
}

tutti_status tutti_window_fail(tutti_run run, int64_t code, const char* text)
{
  return guarded(
      [&] { given(run, "the run").open_window().fail(code, text == nullptr ? "" : text); });
}

// --- the step ------------------------------------------------------------------------------------

namespace {

int64_t known(std::uint32_t index) { return index == ~0u ? -1 : static_cast<int64_t>(index); }

std::int32_t rank_of(const Outcome& outcome)
{
  if (outcome.failure.exists()) return static_cast<std::int32_t>(outcome.failure.rank);
  if (outcome.verdict.reason == Reason::control_mismatch ||
      outcome.verdict.reason == Reason::replica_mismatch)
    return static_cast<std::int32_t>(outcome.verdict.rank);
  return outcome.offender.exists() ? static_cast<std::int32_t>(outcome.offender.rank) : -1;
}

tutti_outcome plain(const Outcome& o)
{
  tutti_outcome out = {};
  out.verdict = static_cast<std::int32_t>(o.verdict.kind);
  out.reason = static_cast<std::int32_t>(o.verdict.reason);
  out.step = static_cast<int64_t>(o.step);
  out.attempt = static_cast<int64_t>(o.attempt);
  out.samples = static_cast<int64_t>(o.samples);
  out.window_begin = static_cast<int64_t>(o.window.begin);
  out.window_end = static_cast<int64_t>(o.window.end);
  out.loss = o.loss;
  out.loss_scale = o.loss_scale;
  out.grad_norm = o.grad_norm;
  out.clip = o.clip;
  out.learning_rate_factor = o.learning_rate_factor;
  out.nonfinite = static_cast<int64_t>(o.nonfinite);
  out.failure_code = o.failure.exists() ? o.failure.code : 0;
  out.rank = rank_of(o);
  out.stop_requested = o.stop_requested ? 1 : 0;
  out.save = static_cast<std::int32_t>(o.save);
  return out;
}

}  // namespace

tutti_status tutti_step(tutti_run run, tutti_outcome* outcome)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    Coordinator& coordinator = r.started("tutti_step");
    Window& window = r.open_window();
    if (r.stop_requested.exchange(false, std::memory_order_relaxed)) window.request_stop();
    try {
      r.outcome = coordinator.step(window);
    } catch (const Halt& halt) {
      r.outcome = halt.outcome;
      r.window.reset();
      if (outcome != nullptr) *outcome = plain(r.outcome);
      throw;
    }
    r.window.reset();
    if (outcome != nullptr) *outcome = plain(r.outcome);  // it stands, whatever the copy says
    if (r.outcome.committed()) r.write_bound_weights();
  });
}

tutti_status tutti_step_message(tutti_run run, const char** message)
{
  return guarded([&] {
    given(message, "the output for the message") = given(run, "the run").outcome.message.c_str();
  });
}

tutti_status tutti_step_incident(tutti_run run, tutti_incident* incident)
{
  return guarded([&] {
    const Offender& o = given(run, "the run").outcome.offender;
    tutti_incident& out = given(incident, "the output for the incident");
    out = {TUTTI_STAGE_NONE, -1, -1, -1, -1, -1, 0, 0};
    if (!o.exists()) return;
    const bool loss = o.parameter == ~0u;
    out.stage = static_cast<std::int32_t>(o.stage);
    out.rank = static_cast<std::int32_t>(o.rank);
    out.optimizer = loss ? -1 : static_cast<int64_t>(o.participant);
    out.parameter = known(o.parameter);
    out.element = loss ? -1 : static_cast<int64_t>(o.element);
    out.micro = known(o.micro);
    out.count = static_cast<int64_t>(o.count);
    out.value = std::bit_cast<float>(o.value_bits);
  });
}

tutti_status tutti_step_incident_json(tutti_run run, const char** json)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    given(json, "the output for the text");
    r.incident_json = r.outcome.incident ? to_json(*r.outcome.incident) : std::string();
    *json = r.incident_json.c_str();
  });
}
