// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The run of the reference trainer, top to bottom: options agreed, data, model, optimizer and
// coordinator built, resumed, then attempt after attempt until the last step. What a step does is
// in the coordinator, what the model computes in mlp.cpp.
#include "train.hpp"

#include <cblas.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoints.hpp"
#include "devices.hpp"
#include "idx_images.hpp"
#include "mlp.hpp"
#include "model_optimizers.hpp"
#include "reporter.hpp"
#include "run_log.hpp"
#include "sample_order.hpp"
#include "saver.hpp"
#include "stop_request.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/tutti.hpp"
#include "watch.hpp"

namespace tutti::apps {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr std::size_t evaluation_batch = 500;

int rank_in(MPI_Comm communicator)
{
  int rank = 0;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  return rank;
}

/// All ranks must have been told the same, but for what is a rank's own matter: they may have been
/// started with different flags, environments or files.
void agree_on_options(const OptionTable& table, MPI_Comm world)
{
  const auto agreed = [](const Option& option) { return option.role != Role::local; };
  const nlohmann::json mine = table.json(agreed);
  std::string text = mine.dump();
  broadcast_text(world, text, 0);
  collectively(world, [&] {
    const nlohmann::json root = nlohmann::json::parse(text);
    for (const auto& [name, value] : mine.items())
      if (root.at(name) != value)
        throw ConfigError(
            fmt::format("{} = {} differs from rank 0's ({}); start all ranks with the same options",
                        name, value.dump(), root.at(name).dump()));
  });
}

/// The parts of one run. `close()` ends it on all ranks; without it, what is shared is left to the
/// end of the job.
class Trainer {
 public:
  /// `checkpoint`: to restore; without a path: none.
  Trainer(OptionTable& table, TrainConfig& config, FoundCheckpoint checkpoint, StopRequest& stop,
          bool quiet);
  /// Fills the optimizer; false (on all ranks) if the checkpoint turned out to be damaged and
  /// another one may be tried.
  bool start();
  ExitCode run();
  void close();

 private:
  void build();
  void restore();
  void load_weights();
  void present(Window& window);
  void compute_micro_batch(Window& window, std::uint32_t micro);
  double compute(Interval positions, double gradient_scale);
  double compute_again(Interval positions, double gradient_scale);
  bool attempt();
  void after_commit();
  void say_why_stopped();
  double evaluate();
  Evidence evidence(Interval positions) const;
  std::string halt_text() const;
  bool summarize();

  OptionTable& table_;
  TrainConfig& config_;
  MPI_Comm world_ = MPI_COMM_WORLD;
  StopRequest& stop_;
  bool quiet_;  ///< says nothing of what it does
  FoundCheckpoint checkpoint_;

  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Watch> watch_;
  ImageData data_;
  std::unique_ptr<SampleOrder> order_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelOptimizers> optimizers_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Saver> saver_;

  Mlp::Batch batch_;
  std::vector<std::byte> staging_;  ///< weights on their way from a device
  std::string log_failure_;         ///< becomes a flag of the next window
  std::optional<Outcome> halted_;
  bool stopped_ = false;  ///< asked to, before the last step
  double final_loss_ = std::numeric_limits<double>::quiet_NaN();
  std::optional<double> accuracy_;
  std::uint64_t accuracy_step_ = 0;
  std::uint64_t presented_samples_ = 0;
  double attempt_seconds_ = 0;
  steady_clock::time_point start_ = steady_clock::now();
};

Trainer::Trainer(OptionTable& table, TrainConfig& config, FoundCheckpoint checkpoint,
                 StopRequest& stop, bool quiet)
    : table_(table), config_(config), stop_(stop), quiet_(quiet), checkpoint_(std::move(checkpoint))
{
  int ranks = 1;
  check_mpi(MPI_Comm_size(world_, &ranks), "MPI_Comm_size");
  collectively(world_, [&] { check(config_, table_, ranks); });
  openblas_set_num_threads(1);  // a run's bits must not depend on the machine's core count
  build();
}

void Trainer::build()
{
  TopologyOptions options;
  options.model_parallel = static_cast<int>(config_.model_parallel);
  options.shared_memory = config_.shared_memory == "on";
  collectively(world_, [&] { topology_ = std::make_unique<Topology>(world_, options); });
  const int rank = topology_->rank();
  reporter_ = std::make_unique<Reporter>(rank == 0 && !quiet_, config_.log_format == "json",
                                         config_.progress_every, config_.steps);
  collectively(world_, [&] {
    if (rank == 0) require_writable(config_.summary, "summary");
    log_ = std::make_unique<RunLog>(config_.log, rank, !config_.resume.empty());
    if (!config_.checkpoint_dir.empty() && rank == 0) {
      std::error_code error;
      std::filesystem::create_directories(config_.checkpoint_dir, error);
      if (error)
        throw ConfigError(fmt::format("checkpoint-dir {} cannot be made ({}); give another folder",
                                      config_.checkpoint_dir, error.message()));
    }
  });

  data_ = load_image_data(config_.data, world_);
  order_ = std::make_unique<SampleOrder>(config_.seed, data_.train.count);

  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  const int local_rank = rank_in(node);
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  collectively(world_, [&] { device_ = make_device(config_.device, local_rank); });
  const std::vector<double> weights =
      config_.rank_weights == "auto" ? measure_rank_weights(*device_, topology_->world())
                                     : parse_rank_weights(config_.rank_weights, topology_->size(),
                                                          topology_->model_parallel());
  if (config_.rank_weights == "auto")
    reporter_->note(fmt::format("rank weights measured: {}", fmt::join(weights, ",")));

  const MlpShape shape{data_.train.pixels_per_image(), config_.hidden, LabelledImages::classes,
                       *precision_named(config_.precision)};
  optimizers_ = std::make_unique<ModelOptimizers>(config_, shape, *topology_, *device_, weights);
  CoordinatorOptions coordinator;
  coordinator.policy = make_policy(config_);
  coordinator.window_samples = config_.batch;
  coordinator.micro_batches = static_cast<std::uint32_t>(config_.micro_batches);
  coordinator.epoch_samples = data_.train.count;
  coordinator.configuration_hash = configuration_hash(table_);
  coordinator.configuration = configuration_text(table_);
  coordinator.faults = make_fault_plan(config_);
  coordinator.incident_dir = !config_.incident_dir.empty() ? config_.incident_dir
                             : !config_.checkpoint_dir.empty()
                                 ? config_.checkpoint_dir + "/incidents"
                                 : std::string();
  if (config_.recompute_on_fault == "on") {
    coordinator.recompute = [this](Interval positions, double gradient_scale) {
      return compute_again(positions, gradient_scale);
    };
    coordinator.arithmetic =
        device_->kind() == DeviceKind::host
            ? fmt::format("{} {}", openblas_get_config(), openblas_get_corename())
            : device_->name();
  }
  coordinator.evidence = [this](Interval positions) { return evidence(positions); };
  if (config_.watchdog > 0 && topology_->size() > 1) {
    watch_ = std::make_unique<Watch>(*topology_, config_.watchdog);
    if (watch_->watchdog().running())
      coordinator.watchdog = &watch_->watchdog();
    else
      reporter_->note(watch_->watchdog().description());
  }
  collectively(world_, [&] {
    coordinator_ =
        std::make_unique<Coordinator>(*topology_, optimizers_->participants(), coordinator);
  });
  saver_ = std::make_unique<Saver>(config_, configuration_text(table_), *topology_, *coordinator_,
                                   stop_, *reporter_);
  collectively(world_, [&] {
    const std::uint64_t most = std::max<std::uint64_t>(config_.batch, evaluation_batch);
    batch_.images.reserve(most);
    batch_.labels.reserve(most);
    gemm_ = make_gemm(device_->kind());
    mlp_ = std::make_unique<Mlp>(shape, topology_->model_axis(), most, *gemm_);
    // Who waits for a model-parallel peer must not be taken for the one that is missing.
    if (Watchdog* const watchdog = coordinator_->watchdog())
      mlp_->on_collective(
          [watchdog](bool begins) { begins ? watchdog->wait() : watchdog->resume(); });
  });
}

void Trainer::restore()
{
  const bool resumes = !config_.resume.empty();
  RestoreOptions options;
  options.verify = config_.verify == "off"       ? Verify::off
                   : config_.verify == "sampled" ? Verify::sampled
                                                 : Verify::full;
  if (resumes) {
    options.epoch_samples = data_.train.count;
  } else {
    options.weights_only = options.change_precision = true;
    options.only = init_patterns(config_);
  }
  const RestoredControl restored =
      restore_checkpoint(checkpoint_.path, *topology_, optimizers_->participants(), options);
  if (resumes) {
    coordinator_->resume(restored.control);
    saver_->resumed();
    coordinator_->note_checkpoint(checkpoint_.path, restored.step);
    reporter_->note(fmt::format("resumed from {} at step {}", checkpoint_.path, restored.step));
  } else {
    reporter_->note(
        fmt::format("began with the weights of {} at step {}", checkpoint_.path, restored.step));
  }
}

bool Trainer::start()
{
  for (const std::string& reason : checkpoint_.refused) reporter_->warn(reason);
  if (config_.resume.empty()) optimizers_->initialize(config_.seed);
  if (!checkpoint_.path.empty()) {
    std::string damage;  // the same on all ranks
    collectively(world_, [&] {
      try {
        restore();
      } catch (const DamagedCheckpoint& bad) {
        if (!checkpoint_.is_newest) throw;
        damage = bad.what();
      } catch (const IoError& bad) {
        if (!checkpoint_.is_newest) throw;
        damage = bad.what();
      }
    });
    if (!damage.empty()) {
      reporter_->warn(damage);
      return false;
    }
  }
  double largest = static_cast<double>(optimizers_->allocated_bytes());
  double total = largest;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, world_), "MPI_Allreduce");
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_DOUBLE, MPI_SUM, world_), "MPI_Allreduce");
  stop_.guess_save(total);
  reporter_->note(fmt::format(
      "{} ranks ({} data-parallel x {} model-parallel), {}, {}, {} update, {:.1f} MB of optimizer "
      "state and buffers on the fullest rank",
      topology_->size(), topology_->data_parallel(), topology_->model_parallel(), device_->name(),
      optimizers_->exchange_description(), config_.update, largest / 1e6));
  if (config_.precision != "fp16")
    for (const char* name : {"init-scale", "growth", "backoff", "growth-interval", "hysteresis",
                             "min-scale", "max-scale"})
      if (table_.given(name))
        reporter_->warn(
            fmt::format("{} has no effect ({} runs without a loss scaler); leave it out", name,
                        config_.precision));
  return true;
}

// --- an attempt --------------------------------------------------------------------------------

void Trainer::load_weights()
{
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    const void* values = optimizers_->weights(p);
    if (device_->kind() !=
        DeviceKind::host) {  // the model computes on the host, with the same bits on every rank
      staging_.resize(mlp_->elements(p) * bytes_of(mlp_->precision()));
      device_->copy(staging_.data(), values, staging_.size());
      values = staging_.data();
    }
    mlp_->set_weights(p, values);
  }
}

/// Forward and backward of one micro-batch; its gradients go to the optimizers. Its model-parallel
/// peers have the same samples and wait for this rank in the sum of the logits, so whatever fails
/// here, the pass is made, and the failure thrown after it. The sum of the losses.
double Trainer::compute(Interval positions, double gradient_scale)
{
  if (positions.empty()) {
    for (std::size_t p = 0; p < Mlp::parameter_count; ++p) optimizers_->set_absent(p);
    return 0;
  }
  std::string unread;
  batch_.images.assign(positions.size(), data_.train.pixels.data());
  batch_.labels.assign(positions.size(), 0);
  try {
    for (std::uint64_t i = 0; i < positions.size(); ++i) {
      const std::uint32_t id = order_->id(positions.begin + i);
      batch_.images[i] = data_.train.image(id);
      batch_.labels[i] = data_.train.labels[id];
    }
  } catch (const std::exception& error) {
    unread = error.what();
  }
  const double loss = mlp_->loss_and_gradients(batch_, gradient_scale);
  const std::string failure = gemm_->take_failure();
  if (!unread.empty()) throw IoError(unread);
  if (!failure.empty()) throw DeviceError(failure);
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p)
    device_->copy(optimizers_->gradient(p), mlp_->gradient(p),
                  mlp_->elements(p) * bytes_of(mlp_->precision()));
  return loss;
}

void Trainer::compute_micro_batch(Window& window, std::uint32_t micro)
{
  const Interval positions = window.positions(micro);
  double loss = 0;
  try {
    loss = compute(positions, window.gradient_scale());
  } catch (const MpiError&) {
    throw;
  } catch (const Error& error) {
    window.fail(static_cast<std::int64_t>(error.code()), error.what());
  } catch (const std::exception& error) {
    window.fail(static_cast<std::int64_t>(ErrorCode::device), error.what());
  }
  window.add_micro_batch(loss, positions.size());
}

/// The same from the weights on, since what was computed with may be what went wrong.
double Trainer::compute_again(Interval positions, double gradient_scale)
{
  std::exception_ptr failure;
  try {
    load_weights();
  } catch (...) {
    failure = std::current_exception();
  }
  const double loss = compute(positions, gradient_scale);
  if (failure) std::rethrow_exception(failure);
  return loss;
}

void Trainer::present(Window& window)
{
  try {
    load_weights();
  } catch (const MpiError&) {
    throw;
  } catch (const std::exception& error) {
    window.fail(static_cast<std::int64_t>(ErrorCode::device), error.what());
  }
  if (!log_failure_.empty()) window.fail(static_cast<std::int64_t>(ErrorCode::io), log_failure_);
  for (std::uint32_t micro = 0; micro < window.micro_batches(); ++micro)
    compute_micro_batch(window, micro);
}

/// One attempt at an update; false when it ended the run.
bool Trainer::attempt()
{
  const auto begin = steady_clock::now();
  Window window = coordinator_->open_window();
  if (stop_.asked()) window.request_stop();
  present(window);
  Outcome outcome;
  try {
    outcome = coordinator_->step(window);
  } catch (const Halt& halt) {
    outcome = halt.outcome;
    halted_ = halt.outcome;
  }
  attempt_seconds_ += duration<double>(steady_clock::now() - begin).count();
  if (outcome.committed()) {
    final_loss_ = outcome.loss;
    presented_samples_ += outcome.samples;
  }
  try {
    log_->write(to_json(outcome, config_.lr, optimizers_->participants()));
  } catch (const IoError& error) {
    log_failure_ = error.what();
  }
  if (halted_) return false;
  const ControlState& control = coordinator_->control();
  reporter_->attempt(outcome, control.loss_scale, control.attempt - control.step);
  stopped_ = outcome.stop_requested && control.step < config_.steps;
  if (outcome.committed() && !stopped_) after_commit();
  stop_.attempted();
  saver_->after_attempt(outcome);
  return !stopped_;
}

void Trainer::after_commit()
{
  const std::uint64_t step = coordinator_->control().step;
  if (config_.eval_every > 0 && step % config_.eval_every == 0) {
    accuracy_ = evaluate();
    accuracy_step_ = step;
    reporter_->note(fmt::format("step {}: test accuracy {:.4f} (all {} test images, all ranks)",
                                step, *accuracy_, data_.test.count));
  }
}

/// The samples of a micro-batch for an incident: what an attempt needs to be made again, together
/// with the checkpoint.
Evidence Trainer::evidence(Interval positions) const
{
  Evidence evidence;
  const std::size_t pixels = data_.train.pixels_per_image();
  NamedArray inputs{"inputs", "|u1", {positions.size(), pixels}, {}};
  NamedArray labels{"labels", "|u1", {positions.size()}, {}};
  for (std::uint64_t p = positions.begin; p < positions.end; ++p) {
    const std::uint32_t id = order_->id(p);
    evidence.sample_ids.push_back(id);
    const auto* image = reinterpret_cast<const std::byte*>(data_.train.image(id));
    inputs.bytes.insert(inputs.bytes.end(), image, image + pixels);
    labels.bytes.push_back(static_cast<std::byte>(data_.train.labels[id]));
  }
  evidence.arrays = {std::move(inputs), std::move(labels)};
  return evidence;
}

/// The share of test images that are classified right, cut among the data-parallel ranks; an
/// integer sum.
double Trainer::evaluate()
{
  load_weights();
  const Interval mine =
      Interval{0, data_.test.count}.part(static_cast<std::uint64_t>(topology_->data_rank()),
                                         static_cast<std::uint64_t>(topology_->data_parallel()));
  std::uint64_t correct = 0;
  for (std::uint64_t at = mine.begin; at < mine.end;) {
    const std::uint64_t end = std::min<std::uint64_t>(mine.end, at + evaluation_batch);
    batch_.images.clear();
    batch_.labels.clear();
    for (; at < end; ++at) {
      batch_.images.push_back(data_.test.image(at));
      batch_.labels.push_back(data_.test.labels[at]);
    }
    correct += mlp_->count_correct(batch_);
    coordinator_->progress();
  }
  if (topology_->model_rank() != 0)
    correct = 0;  // the model-parallel peers counted the same images
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &correct, 1, MPI_UINT64_T, MPI_SUM, topology_->world()),
            "MPI_Allreduce");
  return static_cast<double>(correct) / data_.test.count;
}

// --- the end -----------------------------------------------------------------------------------

/// No last evaluation: there may be no time for more than the save.
void Trainer::say_why_stopped()
{
  const std::string reason = stop_.agreed_reason(world_);
  reporter_->note(fmt::format("stop requested at step {} of {} ({}); saving, go on with --resume",
                              coordinator_->control().step, config_.steps, reason));
}

ExitCode Trainer::run()
{
  bool going = true;
  while (going && coordinator_->control().step < config_.steps) going = attempt();
  if (stopped_) {
    say_why_stopped();
  } else if (!halted_) {
    if (!accuracy_ || accuracy_step_ != coordinator_->control().step) accuracy_ = evaluate();
  }
  if (!halted_ && !log_failure_.empty()) reporter_->warn(log_failure_);
  const bool saved = saver_->finish(halted_.has_value());
  const bool summarized = summarize();
  close();
  if (halted_) return ExitCode::halted;
  if (!saved) return ExitCode::error;
  if (stopped_) return static_cast<ExitCode>(config_.requeue_exit);
  return summarized ? ExitCode::ok : ExitCode::error;
}

/// Says how the run went; false if that could not be written. What the run came to stands all the
/// same.
bool Trainer::summarize()
{
  const std::vector<Participant*> all = optimizers_->participants();
  const std::uint64_t digest = state_digest(all, topology_->world());
  const double wall = duration<double>(steady_clock::now() - start_).count();
  const ControlState& control = coordinator_->control();
  const double rate =
      attempt_seconds_ > 0 ? static_cast<double>(presented_samples_) / attempt_seconds_ : 0;
  nlohmann::ordered_json skips = nlohmann::ordered_json::object();
  std::uint64_t skipped = 0;
  for (std::size_t r = 0; r < reason_count; ++r) {
    const auto reason = static_cast<Reason>(r);
    const bool skips_only =
        reason == Reason::gradient || reason == Reason::loss || reason == Reason::update;
    if (!skips_only && control.skips[r] == 0) continue;
    skips[std::string(name_of(reason))] = control.skips[r];
    skipped += control.skips[r];
  }
  const std::uint64_t committed = control.ledger.committed_samples(),
                      dropped = control.ledger.dropped_samples();
  nlohmann::ordered_json summary = {
      {"verdict", halted_    ? "halt"
                  : stopped_ ? "stop"
                             : "ok"},
      {"reason", halted_ ? std::string(name_of(halted_->verdict.reason)) : "none"},
      {"ranks", topology_->size()},
      {"data_parallel", topology_->data_parallel()},
      {"model_parallel", topology_->model_parallel()},
      {"precision", config_.precision},
      {"steps", control.step},
      {"attempts", control.attempt},
      {"skips", skips},
      {"test_accuracy", accuracy_ ? nlohmann::ordered_json(*accuracy_) : nlohmann::ordered_json()},
      {"final_loss", final_loss_},
      {"loss_scale", control.loss_scale},
      {"samples_committed", committed},
      {"samples_dropped", dropped},
      {"wall_seconds", wall},
      {"samples_per_second", rate},
      {"state_digest", fmt::format("{:016x}", digest)},
  };
  if (topology_->rank() == 0 && !quiet_) {
    std::string text = fmt::format(
        "{} steps in {} attempts ({} skipped by all ranks), {} samples committed, {} dropped\n",
        control.step, control.attempt, skipped, committed, dropped);
    if (accuracy_) text += fmt::format("test accuracy {:.4f}, ", *accuracy_);
    text += presented_samples_ > 0 ? fmt::format("last loss {:.4f}, ", final_loss_)
                                   : "no update in this run, ";
    text += fmt::format("loss scale {:g}\n{:.1f} s, {:.0f} samples/s\nstate digest {:016x}\n",
                        control.loss_scale, wall, rate, digest);
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  bool written = true;
  try {
    collectively(world_, [&] {
      if (topology_->rank() == 0 && !config_.summary.empty())
        write_text_file(config_.summary, summary.dump(2) + "\n");
    });
  } catch (const Refusal& refusal) {
    reporter_->warn(refusal.what());
    written = false;
  }
  if (halted_) reporter_->warn(halt_text());
  return written;
}

/// The last word: where the run stands, what was recorded, and what to do next.
std::string Trainer::halt_text() const
{
  const std::string& checkpoint = coordinator_->noted_checkpoint();
  std::string advice;
  switch (halted_->verdict.reason) {
    case Reason::minimum_scale:
    case Reason::consecutive_skips:
    case Reason::skip_rate:
      advice = "look at loss scale, learning rate and data, then ";
      break;
    case Reason::repeat_limit:
      advice = "look at these samples, or --samples drop, then ";
      break;
    case Reason::replica_mismatch:
    case Reason::nonfinite_state:
      advice = "check the memory of that node, then ";
      break;
    default:
      break;
  }
  advice += checkpoint.empty() ? "start anew (no checkpoint was made; see --checkpoint-dir)"
                               : fmt::format("resume with --resume {}", checkpoint);
  return fmt::format("{}; last committed step {}; newest checkpoint {}{}; {}", halted_->message,
                     coordinator_->control().step, checkpoint.empty() ? "none" : checkpoint,
                     incident_note(*halted_), advice);
}

void Trainer::close()
{
  watch_.reset();
  coordinator_->close();
  optimizers_->close();
  topology_->close();
}

}  // namespace

ExitCode train(OptionTable& table, TrainConfig& config, bool quiet)
{
  const MPI_Comm world = MPI_COMM_WORLD;
  StopRequest stop(config, rank_in(world) == 0);
  agree_on_options(table, world);
  const TrainConfig given = config;
  collectively(world, [&] { check_sources(config); });
  std::string passed_over;
  for (;;) {
    const auto find = [&](const std::string& which) {
      return find_checkpoint(which, config.checkpoint_dir, world, passed_over);
    };
    FoundCheckpoint checkpoint;
    if (!config.resume.empty()) checkpoint = find(config.resume);
    if (checkpoint.path.empty()) config.resume.clear();  // auto, and there is none: a new run
    const bool goes_on = config.resume == "latest" || config.resume == "auto";
    if (!goes_on && !config.checkpoint_dir.empty())
      refuse_used_folder(config.checkpoint_dir, checkpoint.path, world);
    if (config.resume.empty() && !config.init_from.empty()) checkpoint = find(config.init_from);
    if (!config.resume.empty())
      collectively(world, [&] { table.resume_from(checkpoint.configuration, checkpoint.path); });
    passed_over = checkpoint.path;
    Trainer trainer(table, config, std::move(checkpoint), stop, quiet);
    if (trainer.start()) return trainer.run();
    // What is built has the configuration of a file that is damaged; an older one may have another.
    trainer.close();
    config = given;
    table.forget_checkpoint();
  }
}

}  // namespace tutti::apps
