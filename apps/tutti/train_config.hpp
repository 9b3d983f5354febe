// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What `tutti train` can be told, and what follows from it: the policy, the optimizer's options,
// the hash that all ranks must agree on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/sharded_adam.hpp"

namespace tutti::apps {

/// The values of the options of `tutti train` under their names; the initial ones are the defaults.
struct TrainConfig {
  // The model and its data.
  std::uint64_t hidden = 256;
  std::string precision = "fp16";
  std::uint64_t seed = 1;
  std::string data = "/usr/share/datasets/fashion-mnist";
  // The run.
  std::uint64_t steps = 1500, batch = 256, micro_batches = 1;
  // The job.
  std::uint64_t model_parallel = 1;
  std::string device = "auto", rank_weights = "equal", shared_memory = "on";
  std::string exchange = "ordered", transport = "mpi", wire = "auto", update = "staged";
  // The optimizer.
  std::string optimizer = "adam", bias_optimizer = "shared";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, ema = 0,
         max_norm = 0;
  std::string schedule = "constant";
  std::uint64_t schedule_steps = 0, warmup = 0;
  double final_factor = 0;
  // Loss scaling and policy.
  double init_scale = 2097152, growth = 2, backoff = 0.5, min_scale = 0, max_scale = 0;
  std::uint64_t growth_interval = 2000, hysteresis = 1, max_consecutive_skips = 50,
                repeat_limit = 3;
  double max_skip_rate = 0;
  std::uint64_t skip_window = 64, digest_every = 0;
  std::string samples = "replay";
  // Checkpoints.
  std::string checkpoint_dir, resume, verify = "full", init_from, init_only;
  std::uint64_t checkpoint_every = 0, checkpoint_keep = 0;
  double checkpoint_minutes = 0;
  std::string checkpoint_async = "off", checkpoint_io = "mpiio", on_checkpoint_error = "stop";
  // An end before the last step.
  std::string stop_file;
  double walltime = 0;
  std::uint64_t requeue_exit = 75;
  // What is said.
  std::uint64_t eval_every = 0, progress_every = 100;
  std::string log, summary, log_format = "text", config;
  std::string incident_dir, recompute_on_fault = "off";
  double watchdog = 300;
  // Drills.
  std::vector<std::string> fault;
};

/// Declares every option of `tutti train`, bound to `config`.
void declare(OptionTable& table, TrainConfig& config);

/// What single options cannot see: combinations. `ranks`: of the job. Throws ConfigError.
void check(const TrainConfig& config, const OptionTable& table, int ranks);

/// The part of it that says where a checkpoint to begin with comes from, since its configuration
/// comes first.
void check_sources(const TrainConfig& config);

/// "auto" and "equal" give an empty list; otherwise one non-negative number a rank. Throws
/// ConfigError, also when all ranks of one data-parallel axis would own nothing.
std::vector<double> parse_rank_weights(const std::string& text, int ranks, int model_parallel);

/// The patterns of --init-only.
std::vector<std::string> init_patterns(const TrainConfig& config);

Policy make_policy(const TrainConfig& config);
AdamOptions make_adam_options(const TrainConfig& config, std::vector<double> rank_weights);
FaultPlan make_fault_plan(const TrainConfig& config);

/// Of the keys that define the run; agreed in every ballot.
std::uint64_t configuration_hash(const OptionTable& table);
/// The configuration as it goes into a checkpoint.
std::string configuration_text(const OptionTable& table);

}  // namespace tutti::apps
