// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The option table of `tutti train` and what follows from its values. How values are read is in
// options.cpp.
#include "train_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"

namespace tutti::apps {
namespace {

bool defines_run(const Option& option)
{
  return option.role == Role::run || option.role == Role::fixed;
}

void check_rank_weights_text(const std::string& text) { parse_rank_weights(text, 0, 1); }
void check_fault_text(const std::string& text) { parse_fault(text); }

}  // namespace

void declare(OptionTable& table, TrainConfig& c)
{
  const auto whole = [&](const char* name, std::uint64_t& target, Role role, double minimum,
                         const char* help, double maximum = 9007199254740992.0) {
    table.add({.name = name,
               .argument = "N",
               .target = &target,
               .role = role,
               .help = help,
               .minimum = minimum,
               .maximum = maximum});
  };
  const auto real = [&](const char* name, double& target, Role role, double minimum,
                        const char* help, double maximum = std::numeric_limits<double>::infinity(),
                        bool open = false) {
    table.add({.name = name,
               .argument = "X",
               .target = &target,
               .role = role,
               .help = help,
               .minimum = minimum,
               .maximum = maximum,
               .open_range = open});
  };
  const auto choice = [&](const char* name, std::string& target, Role role,
                          std::vector<std::string> choices, const char* help) {
    table.add({.name = name,
               .argument = fmt::format("{}", fmt::join(choices, "|")),
               .target = &target,
               .role = role,
               .help = help,
               .choices = std::move(choices)});
  };
  const auto text = [&](const char* name, const char* argument, std::string& target, Role role,
                        const char* help, std::function<void(const std::string&)> check = {}) {
    table.add({.name = name,
               .argument = argument,
               .target = &target,
               .role = role,
               .help = help,
               .check = std::move(check)});
  };

  text("config", "FILE", c.config, Role::local, "TOML file with any of these options as keys");
  text("data", "DIR", c.data, Role::local,
       "folder with the four gzipped IDX files of Fashion-MNIST");
  whole("steps", c.steps, Role::run, 0,
        "committed updates in total, those before a resume included");
  whole("batch", c.batch, Role::run, 1, "samples of one attempt over all ranks", 1u << 20);
  whole("micro-batches", c.micro_batches, Role::run, 1,
        "micro-batches that a rank cuts its part into", 4096);
  whole("model-parallel", c.model_parallel, Role::launch, 1,
        "ranks that one copy of the model is cut over", 4096);
  whole("hidden", c.hidden, Role::fixed, 1, "hidden units", 1u << 16);
  choice("precision", c.precision, Role::fixed, {"fp16", "bf16", "fp32"},
         "of working weights, activations and gradients");
  whole("seed", c.seed, Role::fixed, 0, "of the initial weights and the sample order");
  choice("optimizer", c.optimizer, Role::fixed, {"adam", "adamw"},
         "Adam with coupled or decoupled weight decay");
  choice("bias-optimizer", c.bias_optimizer, Role::fixed, {"shared", "own"},
         "own: a second one, under the same decisions, for the biases, without weight decay");
  real("lr", c.lr, Role::run, 0, "base learning rate");
  real("beta1", c.beta1, Role::fixed, 0, "decay of exp_avg, below 1", 0.9999999);
  real("beta2", c.beta2, Role::fixed, 0, "decay of exp_avg_sq, below 1", 0.9999999);
  real("epsilon", c.epsilon, Role::run, 0, "added to the root of exp_avg_sq",
       std::numeric_limits<double>::infinity(), true);
  real("weight-decay", c.weight_decay, Role::run, 0, "weight decay");
  choice("schedule", c.schedule, Role::run, {"constant", "linear", "cosine"},
         "of the learning rate");
  whole("schedule-steps", c.schedule_steps, Role::run, 0,
        "committed updates at which the decay ends");
  whole("warmup", c.warmup, Role::run, 0, "committed updates of linear warm-up");
  real("final-factor", c.final_factor, Role::run, 0, "of the base rate, at the end of the decay",
       1);
  real("max-norm", c.max_norm, Role::run, 0, "clip the gradient's norm to this; 0: no clipping");
  real("ema", c.ema, Role::fixed, 0, "decay of a moving average of the master weights; 0: none",
       0.9999999);
  real("init-scale", c.init_scale, Role::run, 0, "first loss scale (fp16)",
       std::numeric_limits<double>::infinity(), true);
  real("growth", c.growth, Role::run, 1, "factor by which the loss scale grows");
  real("backoff", c.backoff, Role::run, 0, "factor by which the loss scale backs off", 1, true);
  whole("growth-interval", c.growth_interval, Role::run, 1,
        "good updates before the loss scale grows");
  whole("hysteresis", c.hysteresis, Role::run, 1, "overflows before the loss scale backs off");
  real("min-scale", c.min_scale, Role::run, 0, "least loss scale; overflow there halts; 0: none");
  real("max-scale", c.max_scale, Role::run, 0, "greatest loss scale; 0: none");
  whole("max-consecutive-skips", c.max_consecutive_skips, Role::run, 0,
        "halt at so many in a row; 0: no limit");
  whole("repeat-limit", c.repeat_limit, Role::run, 0,
        "halt when the same samples break an update so often; 0: no limit");
  real("max-skip-rate", c.max_skip_rate, Role::run, 0,
       "halt when more of the last --skip-window attempts were skipped; 0: no limit", 1);
  whole("skip-window", c.skip_window, Role::run, 1, "attempts that the skip rate is taken over",
        64);
  whole("digest-every", c.digest_every, Role::run, 0,
        "committed updates between checks of the weights' copies; 0: none");
  choice("samples", c.samples, Role::run, {"replay", "drop"},
         "what becomes of a skipped window's samples");
  choice("update", c.update, Role::run, {"staged", "in_place"},
         "make the update beside the state, or over it");
  choice("exchange", c.exchange, Role::run, {"ordered", "reduce_scatter"},
         "how gradients are summed over ranks");
  choice("transport", c.transport, Role::launch, {"mpi", "nccl"},
         "of the exchange between memory domains; nccl: every rank on a CUDA device of its own");
  choice("wire", c.wire, Role::run, {"auto", "fp32"}, "precision in which gradients travel");
  choice("shared-memory", c.shared_memory, Role::launch, {"on", "off"},
         "within a node; off: messages");
  text("rank-weights", "auto|equal|w,w,...", c.rank_weights, Role::launch,
       "share of the optimizer state that each rank owns; auto: measured at start",
       check_rank_weights_text);
  choice("device", c.device, Role::local, {"auto", "host", "cuda"},
         "where this rank's arrays and kernels are");
  text("checkpoint-dir", "DIR", c.checkpoint_dir, Role::launch,
       "where checkpoints go; the last step is saved too; a folder for each run");
  whole("checkpoint-every", c.checkpoint_every, Role::launch, 0,
        "committed updates; 0: only the last");
  real("checkpoint-minutes", c.checkpoint_minutes, Role::launch, 0,
       "wall clock between saves; 0: not by the clock");
  whole("checkpoint-keep", c.checkpoint_keep, Role::launch, 0,
        "newest checkpoints that stay, besides the newest verified one and pinned ones; 0: all");
  choice("checkpoint-async", c.checkpoint_async, Role::launch, {"on", "off"},
         "write in the background while training goes on; needs the state's memory again");
  choice("checkpoint-io", c.checkpoint_io, Role::launch, {"mpiio", "skeleton"},
         "by MPI-IO or by pwrite; the same bytes");
  choice("on-checkpoint-error", c.on_checkpoint_error, Role::launch, {"stop", "continue"},
         "when a checkpoint cannot be written; that of the last step fails the run in any case");
  text("resume", "latest|auto|FILE|DIR", c.resume, Role::launch,
       "go on from a checkpoint; auto: from the latest of --checkpoint-dir, or a new run if there "
       "is "
       "none");
  choice("verify", c.verify, Role::launch, {"full", "sampled", "off"},
         "how much of a checkpoint is compared with its hashes when it is restored");
  text("init-from", "FILE|DIR", c.init_from, Role::launch,
       "begin a new run with the weights of a checkpoint, or of a folder's latest, whatever its "
       "precision");
  text("init-only", "PATTERN,...", c.init_only, Role::launch,
       "of --init-from, only parameters whose names match (*, ?); the others begin as usual");
  text("stop-file", "FILE", c.stop_file, Role::local,
       "save and stop when this file appears (rank 0 looks once a second); SIGTERM and SIGUSR1 do "
       "the same");
  real("walltime", c.walltime, Role::local, 0,
       "seconds that the job has: save and stop in time; 0: as Slurm says, if it does");
  whole("requeue-exit", c.requeue_exit, Role::launch, 5,
        "exit code of a run that saved and stopped before its last step", 125);
  whole("eval-every", c.eval_every, Role::launch, 0,
        "committed updates between test evaluations; 0: only the last");
  whole("progress-every", c.progress_every, Role::local, 1,
        "attempts between lines in a batch log");
  text("log", "FILE.jsonl", c.log, Role::launch,
       "one JSON object an attempt; with {rank} in its name every rank writes one");
  text("incident-dir", "DIR", c.incident_dir, Role::launch,
       "where each attempt that is not committed leaves a JSON file; else in checkpoint-dir");
  choice("recompute-on-fault", c.recompute_on_fault, Role::launch, {"on", "off"},
         "compute a bad window again, there and on another rank: a passing error, the machine or "
         "the data?");
  real("watchdog", c.watchdog, Role::launch, 0,
       "seconds that others wait for a rank that stands still before the job ends; 0: no watchdog");
  text("summary", "FILE.json", c.summary, Role::local, "the run's result as JSON");
  choice("log-format", c.log_format, Role::local, {"text", "json"},
         "of what is said on standard error");
  table.add({.name = "fault",
             .argument = "SPEC",
             .target = &c.fault,
             .role = Role::launch,
             .help = "drill: put in a fault, kind:key=value,...; repeatable",
             .check = check_fault_text});
}

std::vector<double> parse_rank_weights(const std::string& text, int ranks, int model_parallel)
{
  if (text == "auto" || text == "equal") return {};
  std::vector<double> weights;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    double weight = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, weight);
    if (error != std::errc{} || stop != text.data() + end || !std::isfinite(weight) || weight < 0)
      throw ConfigError(fmt::format(
          "rank-weights = '{}' is refused ('{}' is not a number from 0 up); give auto, equal "
          "or one number a rank",
          text, text.substr(begin, end - begin)));
    weights.push_back(weight);
    begin = end + 1;
  }
  if (ranks == 0) return weights;  // the text alone is checked
  if (static_cast<int>(weights.size()) != ranks)
    throw ConfigError(
        fmt::format("rank-weights has {} entries ({} ranks run); give one number a rank",
                    weights.size(), ranks));
  for (int m = 0; m < model_parallel; ++m) {
    double sum = 0;
    for (int rank = m; rank < ranks; rank += model_parallel) sum += weights[rank];
    if (sum <= 0)
      throw ConfigError(
          fmt::format("rank-weights leaves a data-parallel axis without an owner (all ranks of "
                      "model-parallel rank {} have weight 0); give one of them a weight",
                      m));
  }
  return weights;
}

void check_sources(const TrainConfig& c)
{
  if ((c.resume == "latest" || c.resume == "auto") && c.checkpoint_dir.empty())
    throw ConfigError(
        fmt::format("resume = '{}' has no place to look (--checkpoint-dir is missing); give "
                    "--checkpoint-dir or a file",
                    c.resume));
  if (!c.init_from.empty() && !c.resume.empty() && c.resume != "auto")
    throw ConfigError(
        "init-from and resume are both given (one begins a run, the other goes on with one); leave "
        "one of them out");
  if (!c.init_only.empty() && c.init_from.empty())
    throw ConfigError(
        "init-only has no effect (--init-from is missing); give the checkpoint to take from");
}

void check(const TrainConfig& c, const OptionTable& table, int ranks)
{
  if (ranks % static_cast<int>(c.model_parallel) != 0)
    throw ConfigError(fmt::format(
        "model-parallel = {} does not divide the number of ranks ({}); start a multiple of "
        "{} ranks or change --model-parallel",
        c.model_parallel, ranks, c.model_parallel));
  if (c.hidden < c.model_parallel)
    throw ConfigError(fmt::format(
        "hidden = {} is less than model-parallel ({} ranks would hold no hidden unit); raise "
        "--hidden",
        c.hidden, c.model_parallel));
  parse_rank_weights(c.rank_weights, ranks, static_cast<int>(c.model_parallel));
  if (c.schedule != "constant" && c.schedule_steps == 0)
    throw ConfigError(
        fmt::format("schedule = '{}' has no horizon (--schedule-steps is 0); give --schedule-steps",
                    c.schedule));
  if (c.schedule != "constant" && c.warmup >= c.schedule_steps)
    throw ConfigError(fmt::format(
        "warmup = {} leaves no step to decay (schedule-steps = {}); shorten the warm-up", c.warmup,
        c.schedule_steps));
  if (c.min_scale > 0 && c.init_scale < c.min_scale && c.precision == "fp16")
    throw ConfigError(fmt::format("init-scale = {} is below min-scale ({}); raise --init-scale",
                                  c.init_scale, c.min_scale));
  if (c.max_scale > 0 && c.init_scale > c.max_scale && c.precision == "fp16")
    throw ConfigError(fmt::format("init-scale = {} is above max-scale ({}); lower --init-scale",
                                  c.init_scale, c.max_scale));
  if (c.checkpoint_every > 0 && c.checkpoint_dir.empty())
    throw ConfigError(
        "checkpoint-every has no place to write to (--checkpoint-dir is missing); give "
        "--checkpoint-dir");
  if (c.checkpoint_minutes > 0 && c.checkpoint_dir.empty())
    throw ConfigError(
        "checkpoint-minutes has no place to write to (--checkpoint-dir is missing); give "
        "--checkpoint-dir");
  check_sources(c);
  if ((!c.stop_file.empty() || c.walltime > 0) && c.checkpoint_dir.empty())
    throw ConfigError(
        fmt::format("{} has no place to save to (--checkpoint-dir is missing); give "
                    "--checkpoint-dir",
                    c.walltime > 0 ? "walltime" : "stop-file"));
  for (const std::string& text : c.fault) {
    const Fault fault = parse_fault(text);
    if (fault.rank.value_or(0) >= ranks)
      throw ConfigError(
          fmt::format("fault '{}' never fires (rank {} of {} does not exist); give a rank below {}",
                      text, *fault.rank, ranks, ranks));
  }
  (void)table;
}

std::vector<std::string> init_patterns(const TrainConfig& c)
{
  std::vector<std::string> patterns;
  for (std::size_t begin = 0; begin < c.init_only.size();) {
    const std::size_t end = std::min(c.init_only.find(',', begin), c.init_only.size());
    if (end > begin) patterns.push_back(c.init_only.substr(begin, end - begin));
    begin = end + 1;
  }
  return patterns;
}

Policy make_policy(const TrainConfig& c)
{
  Policy policy;
  policy.scaling.enabled = c.precision == "fp16";
  policy.scaling.initial = c.init_scale;
  policy.scaling.growth_factor = c.growth;
  policy.scaling.backoff_factor = c.backoff;
  policy.scaling.growth_interval = c.growth_interval;
  policy.scaling.hysteresis = c.hysteresis;
  policy.scaling.minimum = c.min_scale;
  policy.scaling.maximum = c.max_scale;
  policy.samples = c.samples == "drop" ? SamplePolicy::drop : SamplePolicy::replay;
  policy.update = c.update == "in_place" ? UpdateMode::in_place : UpdateMode::staged;
  policy.max_norm = c.max_norm;
  policy.max_consecutive_skips = c.max_consecutive_skips;
  policy.repeat_limit = c.repeat_limit;
  policy.max_skip_rate = c.max_skip_rate;
  policy.skip_window = c.skip_window;
  policy.digest_every = c.digest_every;
  policy.ema = c.ema > 0;
  policy.schedule.kind = c.schedule == "linear"   ? ScheduleKind::linear
                         : c.schedule == "cosine" ? ScheduleKind::cosine
                                                  : ScheduleKind::constant;
  policy.schedule.warmup = c.warmup;
  policy.schedule.horizon = c.schedule_steps;
  policy.schedule.final_factor = c.final_factor;
  return policy;
}

AdamOptions make_adam_options(const TrainConfig& c, std::vector<double> rank_weights)
{
  AdamOptions options;
  options.name = c.optimizer;
  options.learning_rate = c.lr;
  options.beta1 = c.beta1;
  options.beta2 = c.beta2;
  options.epsilon = c.epsilon;
  options.weight_decay = c.weight_decay;
  options.decoupled = c.optimizer == "adamw";
  options.ema_decay = c.ema;
  options.update = c.update == "in_place" ? UpdateMode::in_place : UpdateMode::staged;
  options.micro_batches = static_cast<std::uint32_t>(c.micro_batches);
  options.fp32_wire = c.wire == "fp32";
  options.nccl = c.transport == "nccl";
  options.reduce_scatter = c.exchange == "reduce_scatter";
  options.rank_weights = std::move(rank_weights);
  return options;
}

FaultPlan make_fault_plan(const TrainConfig& c)
{
  std::vector<Fault> faults;
  for (const std::string& text : c.fault) faults.push_back(parse_fault(text));
  return FaultPlan(std::move(faults));
}

std::uint64_t configuration_hash(const OptionTable& table)
{
  // `steps` says when to stop, not what a step is: runs that only stop at another place are the
  // same run.
  return hash_of(
      table.json([](const Option& o) { return defines_run(o) && o.name != "steps"; }).dump());
}

std::string configuration_text(const OptionTable& table) { return table.json(defines_run).dump(); }

}  // namespace tutti::apps
