// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// From an incident's file back to the weights, the samples and the pass of its rank, then from what
// is seen there to one finding.
#include "replay.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "idx_images.hpp"
#include "incident_command.hpp"
#include "model_optimizers.hpp"
#include "reference_pass.hpp"
#include "sample_order.hpp"
#include "scratch_folder.hpp"
#include "stop_request.hpp"
#include "train.hpp"
#include "tutti/checkpoint_file.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/incident.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {
namespace {

namespace fs = std::filesystem;

/// The samples of a rank's micro-batch.
struct Samples {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint8_t> pixels, labels;
  std::size_t width = 0;
  std::size_t size() const { return labels.size(); }
  const std::uint8_t* image(std::size_t i) const { return pixels.data() + i * width; }
  /// Points into this.
  Mlp::Batch batch() const
  {
    Mlp::Batch out;
    for (std::size_t i = 0; i < size(); ++i) out.images.push_back(image(i));
    out.labels = labels;
    return out;
  }
};

/// The rows of a .npy file of format 1.0 that holds "|u1", as write_incident() makes them.
struct Rows {
  std::size_t count = 0;
  std::vector<std::uint8_t> bytes;
};
Rows read_npy(const fs::path& path)
{
  const auto refuse = [&](const char* why) {
    throw IoError(
        fmt::format("array {} cannot be read ({}); move it away to take the samples from "
                    "the data set",
                    path.string(), why));
  };
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  constexpr std::size_t before = 10;  // magic number, version, length of the description
  if (text.size() < before || text.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0)
    refuse("no NumPy file");
  const std::size_t begin =
      before + static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  const std::string description = text.substr(before, begin - before);
  const std::string_view shape = "'shape': (";
  const std::size_t at = description.find(shape);
  if (text.size() < begin || description.find("'descr': '|u1'") == std::string::npos ||
      at == std::string::npos)
    refuse("no array of bytes");
  Rows rows;
  std::size_t elements = 1;
  std::istringstream extents(description.substr(at + shape.size()));
  std::size_t extent = 0;
  char comma = ',';
  for (bool first = true; comma == ',' && extents >> extent; first = false, extents >> comma) {
    if (first) rows.count = extent;
    elements *= extent;
  }
  if (elements != text.size() - begin) refuse("its size is not that of its shape");
  rows.bytes.assign(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end());
  return rows;
}

/// What one pass over the micro-batch came to.
struct Pass {
  double loss = 0;
  std::uint64_t nonfinite = 0;
  double largest = 0;  ///< finite magnitude, unscaled
  bool finite() const { return nonfinite == 0 && std::isfinite(loss); }
};

class Replay {
 public:
  explicit Replay(const ReplayRequest& request);
  ExitCode run();

 private:
  void add(const char* name, const std::string& text) { notes_.emplace_back(name, text); }
  std::string find();
  std::string without_samples();
  std::string in_update();
  std::string make_again(const Samples& samples);
  bool restore_weights();
  std::string run_steps_between(const std::string& checkpoint, std::uint64_t from);
  Samples samples();
  Samples at_positions(Interval positions) const;
  std::string look_at(const Samples& samples);
  Pass pass(const Mlp::Batch& batch, double loss_scale);
  std::string compare_kernels(const char* note, const Mlp::Batch& batch, double loss_scale);
  void refuse_nonsense() const;
  std::string in_sums();
  std::string node() const { return incident_.node.empty() ? "unknown" : incident_.node; }
  std::string hardware() const
  {
    return fmt::format("cannot reproduce (suspect hardware on rank {}, node {})", incident_.rank,
                       node());
  }

  const ReplayRequest& request_;
  fs::path file_;
  Incident incident_;
  TrainConfig config_;
  OptionTable table_{"train"};
  std::optional<LabelledImages> data_;
  std::string data_problem_;
  MlpShape shape_;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelOptimizers> optimizers_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Mlp> mlp_;
  std::string state_problem_;             ///< why the checkpoint's state was refused
  std::optional<ScratchFolder> scratch_;  ///< of steps that are run again
  std::vector<std::pair<std::string, std::string>> notes_;
};

Replay::Replay(const ReplayRequest& request)
    : request_(request), file_(incident_file(request.file)), incident_(read_incident(file_))
{
  declare(table_, config_);
}

/// An incident without a bad value.
std::string Replay::without_samples()
{
  const Incident& i = incident_;
  if (!i.failure_phase.empty())
    return fmt::format("no value was bad: rank {} failed in phase {} ({})", i.rank, i.failure_phase,
                       i.failure_text);
  if (!i.mismatch.empty())
    return fmt::format(
        "no value was bad: {} on rank {} is not that of the other ranks; look at how "
        "they were started",
        i.mismatch, i.rank);
  if (i.replica_block)
    return fmt::format(
        "the copy of {}/{} on rank {} changed after it was written (suspect memory of "
        "node {})",
        i.optimizer, i.parameter, i.rank, node());
  if (i.stage.empty()) return "the incident names no value (it was written without one)";
  return {};
}

/// The run's own steps from a checkpoint (or from the seed) to the incident, on this one rank; the
/// file that holds their end.
std::string Replay::run_steps_between(const std::string& checkpoint, std::uint64_t from)
{
  const std::uint64_t steps = incident_.step - from;
  if (steps > request_.steps)
    throw ConfigError(
        fmt::format("incident {} is {} steps after its checkpoint (at most {} are made again); "
                    "give a nearer one with --checkpoint, or raise --most-steps",
                    file_.string(), steps, request_.steps));
  // A run that is asked to stop does so, and what it wrote is removed with the folder.
  StopRequest::catch_signals({SIGINT, SIGTERM});
  scratch_.emplace("replay");
  fmt::print(stderr, "tutti: making {} steps again, on one rank\n", steps);
  TrainConfig config = config_;
  OptionTable table("train");
  declare(table, config);
  // As a flag, since a resumed run takes what is not given from its checkpoint.
  table.set_text("steps", {fmt::format("{}", incident_.step)}, Source::flag, "--steps");
  config.resume = checkpoint;
  config.checkpoint_dir = scratch_->path().string();
  config.progress_every = config.eval_every = config.checkpoint_every = 0;
  config.watchdog = 0;
  const ExitCode end = train(table, config, true);
  if (end == static_cast<ExitCode>(config.requeue_exit))
    throw Refusal(end, "the replay was asked to stop (by a signal); start it again");
  if (end != ExitCode::ok)
    throw IoError(fmt::format(
        "the {} steps between checkpoint and incident do not go well again (they halt); save more "
        "often, or give a nearer one with --checkpoint",
        steps));
  return (scratch_->path() / fmt::format("step-{:012}.h5", incident_.step)).string();
}

/// False if the checkpoint's state itself is bad.
bool Replay::restore_weights()
{
  std::string checkpoint = request_.checkpoint.empty() ? incident_.checkpoint : request_.checkpoint;
  std::uint64_t step = checkpoint.empty() ? 0 : incident_.checkpoint_step;
  if (!request_.checkpoint.empty()) step = CheckpointFile(checkpoint).step();
  if (step > incident_.step)
    throw ConfigError(
        fmt::format("checkpoint {} is of step {} (the incident is of step {}); give an "
                    "older one",
                    checkpoint, step, incident_.step));
  const std::string origin = checkpoint.empty()
                                 ? fmt::format("the first ones of seed {}", config_.seed)
                                 : fmt::format("of {} (step {})", checkpoint, step);
  optimizers_->initialize(config_.seed);
  try {
    if (!checkpoint.empty())
      restore_checkpoint(checkpoint, *topology_, optimizers_->participants(), {});
  } catch (const IllegalState& error) {
    state_problem_ = error.what();
    return false;
  }
  if (step < incident_.step) {
    const std::string file = run_steps_between(checkpoint, step);
    restore_checkpoint(file, *topology_, optimizers_->participants(), {});
    scratch_.reset();
    for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
    add("weights", fmt::format("{}, and {} steps run again on one rank (their bits may differ from "
                               "those of the run in rounding)",
                               origin, incident_.step - step));
  } else {
    add("weights", origin);
  }
  add("state", "the optimizer state there is finite");
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p)
    mlp_->set_weights(p, optimizers_->weights(p));
  return true;
}

/// Of the data set, which is there.
Samples Replay::at_positions(Interval positions) const
{
  const SampleOrder order(config_.seed, data_->count);
  Samples out;
  out.width = data_->pixels_per_image();
  for (std::uint64_t p = positions.begin; p < positions.end; ++p) {
    const std::uint32_t id = order.id(p);
    out.ids.push_back(id);
    out.labels.push_back(data_->labels[id]);
    out.pixels.insert(out.pixels.end(), data_->image(id), data_->image(id) + out.width);
  }
  return out;
}

/// Those that were recorded; without them those of the data set at the rank's positions.
Samples Replay::samples()
{
  Samples out;
  out.ids = incident_.sample_ids;
  const auto stored = [&](const char* name) {
    const auto found =
        std::find_if(incident_.array_files.begin(), incident_.array_files.end(),
                     [&](const std::string& file) { return file.find(name) != std::string::npos; });
    return found == incident_.array_files.end() ? fs::path() : file_.parent_path() / *found;
  };
  const fs::path inputs = stored(".inputs."), labels = stored(".labels.");
  if (!inputs.empty() && !labels.empty() && fs::exists(inputs) && fs::exists(labels)) {
    Rows images = read_npy(inputs), classes = read_npy(labels);
    if (images.count != classes.count || classes.bytes.size() != classes.count ||
        incident_.positions.size() != classes.count)
      throw IoError(fmt::format(
          "the recorded samples do not fit the incident ({} images and {} labels for {} samples); "
          "move {} away to take them from the data set",
          images.count, classes.count, incident_.positions.size(), inputs.string()));
    out.pixels = std::move(images.bytes);
    out.labels = std::move(classes.bytes);
    out.width = out.labels.empty() ? 0 : out.pixels.size() / out.labels.size();
    add("samples", fmt::format("{} that were recorded with the incident", out.size()));
  } else if (data_) {
    out = at_positions(incident_.positions);
    add("samples", fmt::format("{} of the data set, at positions {} to {}", out.size(),
                               incident_.positions.begin, incident_.positions.end));
  } else {
    throw IoError(
        fmt::format("the samples of the incident are not to be had (no arrays beside {}, "
                    "and {}); give the data set with --data",
                    file_.string(), data_problem_));
  }
  if (out.size() == 0)
    throw IoError(
        "the incident names no samples (its rank had none in that micro-batch); there is nothing "
        "to make again");
  if (data_ && out.width != data_->pixels_per_image()) {
    data_problem_ = fmt::format("the data set in {} has images of {} pixels, the run's {}",
                                config_.data, data_->pixels_per_image(), out.width);
    data_.reset();
  }
  return out;
}

/// What is wrong with a row; nothing is said of rows that are only strange.
std::string Replay::look_at(const Samples& samples)
{
  const auto id = [&](std::size_t i) { return i < samples.ids.size() ? samples.ids[i] : i; };
  std::vector<std::uint64_t> dark, twice;
  std::map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples.labels[i] >= LabelledImages::classes)
      return fmt::format("bad sample {} (label {} of {} classes)", id(i), samples.labels[i],
                         LabelledImages::classes);
    const std::uint8_t* image = samples.image(i);
    if (data_ && i < samples.ids.size() &&
        (samples.ids[i] >= data_->count || data_->labels[samples.ids[i]] != samples.labels[i] ||
         !std::equal(image, image + samples.width, data_->image(samples.ids[i]))))
      return fmt::format("bad sample {} (what the rank had is not what the data set has)", id(i));
    if (std::all_of(image, image + samples.width, [](std::uint8_t pixel) { return pixel == 0; }))
      dark.push_back(id(i));
    if (!seen.emplace(std::string(image, image + samples.width), i).second) twice.push_back(id(i));
  }
  std::string text = fmt::format("labels below {}", LabelledImages::classes);
  text += data_ ? ", equal to the data set" : ", the data set is not here to compare";
  if (!dark.empty()) text += fmt::format(", all zero: {}", fmt::join(dark, ", "));
  if (!twice.empty()) text += fmt::format(", twice in the micro-batch: {}", fmt::join(twice, ", "));
  add("rows", text);
  return {};
}

Pass Replay::pass(const Mlp::Batch& batch, double loss_scale)
{
  Pass out;
  const double scale = loss_scale / static_cast<double>(config_.batch);
  out.loss = mlp_->loss_and_gradients(batch, scale);
  for (std::size_t p = 0; p < Mlp::parameter_count; ++p) {
    for (const float value : mlp_->gradient_in_fp32(p)) {
      if (!std::isfinite(value))
        ++out.nonfinite;
      else
        out.largest = std::max(out.largest, static_cast<double>(std::abs(value)) / loss_scale);
    }
  }
  return out;
}

/// Of the pass that was just made: the finding, if one is wrong.
std::string Replay::compare_kernels(const char* note, const Mlp::Batch& batch, double loss_scale)
{
  const double scale = loss_scale / static_cast<double>(config_.batch);
  std::string finding, text;
  for (const KernelError& kernel : kernel_errors(*mlp_, shape_, batch, scale)) {
    text += fmt::format("{}{} ", text.empty() ? "" : ", ", kernel.kernel);
    if (kernel.compared == 0)
      text += "not compared";
    else if (kernel.compared < kernel.elements)
      text +=
          fmt::format("{:.2f} ({} of {} compared)", kernel.error, kernel.compared, kernel.elements);
    else
      text += fmt::format("{:.2f}", kernel.error);
    if (kernel.error > 1 && finding.empty())
      finding =
          fmt::format("kernel {} differs from reference (max error {:g}, {:.1f} of its bound)",
                      kernel.kernel, kernel.worst, kernel.error);
  }
  add(note, text + " (error over its bound, where inputs are finite)");
  return finding;
}

/// A sum of finite parts: over the micro-batches of a rank, or over ranks, at the named element.
std::string Replay::in_sums()
{
  if (!data_) throw IoError(data_problem_ + "; a sum needs the samples of all its parts");
  const bool ranks = incident_.stage == "exchange";
  const std::uint64_t data_rank = incident_.rank / incident_.model_parallel;
  std::size_t parameter = 0;
  const ParameterSet model = Mlp::parameters(shape_);
  while (parameter + 1 < model.size() && model[parameter].name != incident_.parameter) ++parameter;
  const double scale = incident_.loss_scale / static_cast<double>(config_.batch);
  float total = 0;
  double largest = 0;
  std::size_t parts = 0;
  for (std::uint64_t d = ranks ? 0 : data_rank; d <= data_rank; ++d) {
    float own = 0;
    for (std::uint64_t m = 0; m < incident_.micro_batches; ++m) {
      const Interval positions =
          incident_.window.part(d, incident_.data_parallel).part(m, incident_.micro_batches);
      if (positions.empty()) continue;
      const Samples part = at_positions(positions);
      mlp_->loss_and_gradients(part.batch(), scale);
      const float value = mlp_->gradient_in_fp32(parameter).at(incident_.element);
      own += value;
      largest = std::max(largest, static_cast<double>(std::abs(value)));
      ++parts;
    }
    total += own;
  }
  add("sum", fmt::format("of {} parts, the largest {:g}: {:g}", parts, largest, total));
  if (std::isfinite(total)) return hardware();
  return fmt::format("overflow in the sum over {} (each part is finite, the largest {:g})",
                     ranks ? "ranks" : "micro-batches", largest);
}

std::string Replay::make_again(const Samples& samples)
{
  const Mlp::Batch batch = samples.batch();
  const auto say = [&](const Pass& made) {
    return made.finite() ? fmt::format("finite, loss {:.6g}, largest gradient {:.4g} unscaled",
                                       made.loss / static_cast<double>(batch.size()), made.largest)
                         : fmt::format("{} nonfinite gradients, loss {:.6g}", made.nonfinite,
                                       made.loss / static_cast<double>(batch.size()));
  };
  const Pass run = pass(batch, incident_.loss_scale);
  add("as in the run",
      fmt::format("{}, loss scale {:g}: {}", config_.precision, incident_.loss_scale, say(run)));
  std::string wrong = compare_kernels("kernels", batch, incident_.loss_scale);

  const ReferencePass reference = reference_pass(*mlp_, shape_, batch);
  double largest = 0;
  bool finite = std::isfinite(reference.loss);
  for (const auto& gradient : reference.gradient)
    for (const double value : gradient) {
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::abs(value) / static_cast<double>(config_.batch));
    }
  add("fp64", finite ? fmt::format("finite, loss {:.6g}, largest gradient {:.4g}",
                                   reference.loss / static_cast<double>(batch.size()), largest)
                     : "not finite");
  if (!wrong.empty()) return wrong;
  if (!run.finite()) {
    if (shape_.precision != Precision::fp16 || !std::isfinite(run.loss))
      return finite ? fmt::format("overflow of {} (finite in fp64)", config_.precision)
                    : "nonfinite in fp64, too (weights or data are)";
    double safe = incident_.loss_scale;
    Pass lowered = run;
    while (!lowered.finite() && safe > 0x1p-24) {
      safe *= config_.backoff < 1 ? config_.backoff : 0.5;
      lowered = pass(batch, safe);
    }
    add("scaled down",
        fmt::format("{}, loss scale {:g}: {}", config_.precision, safe, say(lowered)));
    // What an overflow had kept from being compared.
    if (lowered.finite()) wrong = compare_kernels("kernels there", batch, safe);
    if (!wrong.empty()) return wrong;
    return lowered.finite() ? fmt::format("overflow from the loss scale (finite at {:g})", safe)
                            : fmt::format("overflow of {} at any loss scale", config_.precision);
  }
  if (incident_.stage == "accumulation" || incident_.stage == "exchange") return in_sums();
  return hardware();
}

/// A finite sum of gradients that the update could not hold.
std::string Replay::in_update()
{
  constexpr double greatest = std::numeric_limits<float>::max();
  const double magnitude = incident_.magnitude.value_or(0);
  add("gradient", fmt::format("{:g} in magnitude, unscaled", magnitude));
  if (incident_.stage == "update") {
    const double limit = std::sqrt(greatest / (1 - config_.beta2));
    return magnitude > limit
               ? fmt::format(
                     "gradient too large for Adam in fp32 (its square overflows exp_avg_sq "
                     "above {:.3g}); clip it with --max-norm",
                     limit)
               : hardware();
  }
  return magnitude > greatest
             ? fmt::format(
                   "overflow from the loss scale (unscaled, the gradient is {:g} in "
                   "magnitude, beyond fp32; raise the scale above {:g})",
                   magnitude, incident_.loss_scale)
             : hardware();
}

/// A file that a person or a disk has changed must not give a finding.
void Replay::refuse_nonsense() const
{
  const Incident& i = incident_;
  const auto refuse = [&](const std::string& why) {
    throw IoError(
        fmt::format("incident {} cannot be made again ({}); give a file that tutti train "
                    "wrote",
                    file_.string(), why));
  };
  static constexpr Stage stages[] = {Stage::loss,     Stage::micro_batch, Stage::accumulation,
                                     Stage::exchange, Stage::unscale,     Stage::clip,
                                     Stage::update,   Stage::state};
  if (std::none_of(std::begin(stages), std::end(stages),
                   [&](Stage stage) { return name_of(stage) == i.stage; }))
    refuse(fmt::format("'{}' is no stage", i.stage));
  const std::uint64_t ranks = std::uint64_t{i.data_parallel} * i.model_parallel;
  if (ranks == 0 || i.micro_batches == 0)
    refuse(fmt::format("its job is said to be {} x {} ranks with {} micro-batches", i.data_parallel,
                       i.model_parallel, i.micro_batches));
  if (i.rank >= ranks) refuse(fmt::format("rank {} of {} does not exist", i.rank, ranks));
  if (i.micro && *i.micro >= i.micro_batches)
    refuse(fmt::format("micro-batch {} of {} does not exist", *i.micro, i.micro_batches));
  if (!(i.loss_scale > 0) || !std::isfinite(i.loss_scale))
    refuse(fmt::format("its loss scale is {}", i.loss_scale));
  const auto within = [](Interval inner, Interval outer) {
    return inner.begin <= inner.end && inner.begin >= outer.begin && inner.end <= outer.end;
  };
  if (!within(i.window, {0, i.window.end}) || !within(i.positions, i.window))
    refuse(fmt::format("positions {} to {} are not of its window", i.positions.begin,
                       i.positions.end));
}

std::string Replay::find()
{
  if (const std::string other = without_samples(); !other.empty()) return other;
  refuse_nonsense();
  if (incident_.recomputation) add("in the run", explain(*incident_.recomputation));
  const Incident& i = incident_;
  if (i.stage == "unscale" || i.stage == "clip") return in_update();
  if (i.configuration.empty())
    throw IoError(
        fmt::format("incident {} cannot be made again (it was written without the run's "
                    "configuration); look at it with tutti incident show",
                    file_.string()));
  table_.resume_from(i.configuration, file_.string());
  config_.model_parallel = 1;
  config_.device = "host";
  if (!request_.data.empty()) config_.data = request_.data;
  if (i.stage == "update") return in_update();
  try {
    data_ = read_image_data(config_.data).train;
  } catch (const Error& error) {
    data_problem_ = error.what();
  }
  Samples samples;
  if (i.stage != "state") {
    samples = this->samples();
    if (const std::string bad = look_at(samples); !bad.empty()) return bad;
  } else if (!data_) {
    throw IoError(data_problem_);
  }
  shape_ = {i.stage == "state" ? data_->pixels_per_image() : samples.width, config_.hidden,
            LabelledImages::classes, *precision_named(config_.precision)};
  topology_ = std::make_unique<Topology>(MPI_COMM_WORLD, TopologyOptions{});
  device_ = make_host_device();
  optimizers_ = std::make_unique<ModelOptimizers>(config_, shape_, *topology_, *device_,
                                                  std::vector<double>{});
  gemm_ = make_gemm(DeviceKind::host);
  mlp_ = std::make_unique<Mlp>(shape_, topology_->model_axis(), config_.batch, *gemm_);
  std::string finding;
  if (!restore_weights()) {
    add("state", state_problem_);
    finding = "optimizer state was nonfinite when restored";
  } else if (i.stage == "state") {
    finding = fmt::format(
        "optimizer state was finite at step {} and is so again (suspect memory of "
        "rank {}, node {})",
        i.step, i.rank, node());
  } else {
    finding = make_again(samples);
  }
  optimizers_->close();
  topology_->close();
  return finding;
}

ExitCode Replay::run()
{
  const std::string finding = find();
  if (request_.json) {
    nlohmann::ordered_json out = {{"incident", file_.string()}};
    for (const auto& [name, text] : notes_) out[name] = text;
    out["finding"] = finding;
    fmt::print("{}\n", out.dump(1));
    return ExitCode::ok;
  }
  fmt::print("{}\n", incident_.message);
  notes_.emplace_back("finding", finding);
  for (const auto& [name, text] : notes_) fmt::print("  {:<15}{}\n", name, text);
  return ExitCode::ok;
}

}  // namespace

ExitCode replay(const ReplayRequest& request)
{
  int ranks = 1;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
  ExitCode code = ExitCode::error;
  collectively(MPI_COMM_WORLD, [&] {
    if (ranks != 1)
      throw ConfigError(fmt::format(
          "incident replay makes one rank's part again (it was started on {}); run it without a "
          "launcher",
          ranks));
    code = Replay(request).run();
  });
  return code;
}

}  // namespace tutti::apps
