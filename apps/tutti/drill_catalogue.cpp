// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The catalogue. What a fault's element is in the whole parameter, and who owns it, comes from the
// shard plan of the job: the drill knows it before the job runs.
#include "drill_catalogue.hpp"

#include <fmt/format.h>

#include <array>

#include "mlp.hpp"
#include "tutti/device.hpp"
#include "tutti/shard_plan.hpp"

namespace tutti::apps {
namespace {

constexpr int data_parallel = 2, model_parallel = 2, ranks = data_parallel * model_parallel;
constexpr std::size_t hidden = 64;
constexpr std::uint64_t step = 3, attempt = step + 1;  ///< where faults fire
constexpr std::array<const char*, 3> precisions = {"fp16", "bf16", "fp32"};
constexpr std::array<const char*, 2> sample_policies = {"replay", "drop"};
constexpr const char* parameter = "hidden.weight";

const std::vector<std::string>& base()
{
  static const std::vector<std::string> flags = {
      "--model-parallel", "2",   "--hidden", fmt::format("{}", hidden),
      "--batch",          "64",  "--steps",  "6",
      "--micro-batches",  "2",   "--seed",   "7",
      "--init-scale",     "1024"};
  return flags;
}

std::vector<std::string> with(const std::vector<std::string>& more)
{
  std::vector<std::string> flags = base();
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Of the model, some or all of them.
ParameterSet parameters(const std::vector<std::size_t>& which = {Mlp::w1, Mlp::b1, Mlp::w2,
                                                                 Mlp::b2})
{
  const ParameterSet all = Mlp::parameters({.hidden = hidden, .precision = Precision::fp32});
  ParameterSet some;
  for (const std::size_t p : which) some.add(all[p]);
  return some;
}

/// A parameter as the ranks of an optimizer hold and own it: by default hidden.weight.
class Layout {
 public:
  explicit Layout(const ParameterSet& set = parameters(), std::size_t index = 0)
      : index_(index), plan_(set, data_parallel, model_parallel)
  {
  }
  /// Global index of an element of the piece of `rank`.
  std::size_t global(int rank, std::size_t element) const
  {
    return piece(rank).global_index(element);
  }
  int owner(int rank, std::size_t element) const
  {
    return plan_.owner(rank % model_parallel, block_of(rank, element)).rank;
  }
  /// Global index of an element of what `rank` owns of hidden.weight: its shard begins with it.
  std::size_t owned(int rank, std::size_t element) const
  {
    const std::size_t first = plan_.shard(rank).front() - piece(rank).first_block;
    return global(rank, first * block_elements + element);
  }

 private:
  const Piece& piece(int rank) const { return plan_.layout(rank % model_parallel).piece(index_); }
  std::size_t block_of(int rank, std::size_t element) const
  {
    return piece(rank).first_block + element / block_elements;
  }
  std::size_t index_;
  ShardPlan plan_;
};

/// A value that goes nonfinite at a stage: what the incident must say of it.
void add_nonfinite(std::vector<Drill>& drills)
{
  const Layout layout;
  const auto gradient = [](int rank, int micro, std::size_t element, const char* value) {
    return fmt::format("nonfinite:attempt={},rank={},micro={},param={},element={},value={}",
                       attempt, rank, micro, parameter, element, value);
  };
  for (const std::string precision : precisions)
    for (int rank = 0; rank < ranks; ++rank)
      for (const std::string policy : sample_policies) {
        const auto cell = [&](const std::string& stage, const std::string& reason) {
          Drill drill;
          drill.name = fmt::format("nonfinite/{}/{}/rank{}/{}", stage, precision, rank, policy);
          drill.flags = with({"--precision", precision, "--samples", policy});
          drill.attempt = attempt;
          drill.verdict = "skip";
          drill.reason = reason;
          drill.incident = {{"stage", stage}, {"rank", rank}, {"step", step}};
          return drill;
        };
        const auto at = [&](Drill& drill, std::size_t element) {
          drill.incident.update(
              {{"optimizer", "adam"}, {"parameter", parameter}, {"element", element}});
        };
        // With replay nothing is lost; fp16 backs off, which changes later roundings.
        const bool scaled = precision == "fp16";
        const bool same_end = policy == "replay" && !scaled;
        const std::size_t element = 700 * static_cast<std::size_t>(rank) + 5003;

        Drill loss = cell("loss", "loss");
        loss.faults = {fmt::format("loss:attempt={},rank={},micro=1,value=nan", attempt, rank)};
        loss.incident.update({{"micro", 1}, {"value", "nan"}, {"before_synchronization", true}});
        loss.harmless = policy == "replay";
        drills.push_back(loss);

        Drill micro = cell("micro_batch", "gradient");
        micro.faults = {gradient(rank, 1, element, "-inf")};
        at(micro, layout.global(rank, element));
        micro.incident.update(
            {{"micro", 1}, {"value", "-inf"}, {"count", 1}, {"before_synchronization", true}});
        micro.harmless = same_end;
        drills.push_back(micro);

        if (!scaled) {  // see drills_left_out()
          Drill accumulation = cell("accumulation", "gradient");
          accumulation.faults = {gradient(rank, 0, element, "3e38"),
                                 gradient(rank, 1, element, "3e38")};
          at(accumulation, layout.global(rank, element));
          accumulation.incident.update({{"micro", 1}, {"before_synchronization", true}});
          accumulation.harmless = same_end;
          drills.push_back(accumulation);
        }
        if (!scaled && rank >= model_parallel) {
          Drill exchange = cell("exchange", "gradient");
          exchange.faults = {gradient(rank - model_parallel, 0, element, "3e38"),
                             gradient(rank, 0, element, "3e38")};
          at(exchange, layout.global(rank, element));
          exchange.incident.update(
              {{"value", "inf"}, {"before_synchronization", false}, {"contributor_known", true}});
          exchange.harmless = same_end;
          drills.push_back(exchange);
        }
        if (scaled) {  // the scale brings it over the end of fp32
          Drill unscale = cell("unscale", "update");
          unscale.flags =
              with({"--precision", precision, "--samples", policy, "--init-scale", "1e-35"});
          unscale.faults = {gradient(rank, 1, element, "65504")};
          at(unscale, layout.global(rank, element));
          unscale.incident["rank"] = layout.owner(rank, element);
          unscale.incident.update({{"value", "inf"}, {"before_synchronization", false}});
          drills.push_back(unscale);
        }
        Drill update = cell("update", "update");
        update.faults = {fmt::format("update:attempt={},rank={}", attempt, rank)};
        at(update, layout.owned(rank, 0));
        update.incident["before_synchronization"] = false;
        update.harmless = same_end;
        drills.push_back(update);

        if (policy != "replay") continue;
        Drill state = cell("state", "nonfinite_state");
        state.name = fmt::format("nonfinite/state/{}/rank{}", precision, rank);
        state.faults = {fmt::format("state:attempt={},rank={},param={},element=77,value=nan",
                                    attempt, rank, parameter)};
        at(state, layout.owned(rank, 77));
        state.incident.update({{"value", "nan"}, {"array", "exp_avg"}});
        state.verdict = "halt";
        state.exit_code = 3;
        drills.push_back(state);
      }
}

/// An exception in each phase is one halt on all ranks.
void add_exceptions(std::vector<Drill>& drills)
{
  for (const std::string phase : {"window", "exchange", "ballot", "stage", "gather", "confirm"})
    for (int rank = 0; rank < ranks; ++rank)
      for (const std::string update : {"staged", "in_place"}) {
        Drill drill;
        drill.name = fmt::format("throw/{}/rank{}/{}", phase, rank, update);
        drill.flags = with({"--update", update});
        drill.faults = {fmt::format("throw:attempt={},rank={},phase={}", attempt, rank, phase)};
        drill.exit_code = 3;
        drill.attempt = attempt;
        drill.verdict = "halt";
        const bool decided = phase == "stage" || phase == "gather" || phase == "confirm";
        drill.reason = !decided               ? "window_failed"
                       : update == "in_place" ? "partial_update"
                                              : "update_failed";
        drill.incident = {
            {"rank", rank},
            {"failure",
             {{"phase", phase}, {"text", "planned exception in phase " + phase}, {"code", 0}}}};
        drills.push_back(drill);
      }
}

/// The next run begins at the last checkpoint that is whole, and ends as if nothing had happened.
void add_death(std::vector<Drill>& drills, const std::string& name, std::vector<std::string> flags,
               const std::string& phase, int rank, std::uint64_t at)
{
  Drill drill;
  drill.name = name;
  flags.insert(flags.end(),
               {"--checkpoint-dir", "saved", "--checkpoint-every", "2", "--checkpoint-keep", "1"});
  drill.flags = with(flags);
  drill.faults = {fmt::format("die:step={},rank={},phase={}", at, rank, phase)};
  drill.exit_code = 137;
  drill.resumes = true;
  drills.push_back(drill);
}

/// A death in each phase of a step and of a save.
void add_deaths(std::vector<Drill>& drills)
{
  const auto add = [&](const std::string& phase, int rank, std::uint64_t at) {
    add_death(drills, fmt::format("die/{}/rank{}", phase, rank), {}, phase, rank, at);
  };
  for (const std::string phase :
       {"window", "exchange", "ballot", "stage", "gather", "confirm", "publish"})
    for (const int rank : {0, 3}) add(phase, rank, step);
  for (const std::string phase : {"save_prepare", "save_payload", "save_sync"})
    for (const int rank : {0, 3}) add(phase, rank, 4);
  for (const std::string phase : {"save_complete", "save_publish", "save_pointer", "save_retain"})
    add(phase, 0, 4);  // one rank does these
}

/// A rank that stands still is named, with its place.
void add_stalls(std::vector<Drill>& drills)
{
  for (const std::string phase :
       {"window", "exchange", "ballot", "stage", "gather", "confirm", "publish"})
    for (const int rank : {0, 3}) {
      Drill drill;
      drill.name = fmt::format("stall/{}/rank{}", phase, rank);
      drill.flags = with({"--watchdog", "2"});
      drill.faults = {fmt::format("stall:step={},rank={},phase={}", step, rank, phase)};
      drill.exit_code = 4;
      drill.said = {fmt::format("rank {} hangs", rank),
                    fmt::format("in phase {} of step {}", phase, step)};
      drills.push_back(drill);
    }
}

/// Two optimizers, one for the weights and one for the biases: still one outcome.
void add_two_optimizers(std::vector<Drill>& drills)
{
  const std::vector<std::string> two = {"--bias-optimizer", "own"};
  const Layout weights(parameters({Mlp::w1, Mlp::w2})), biases(parameters({Mlp::b1, Mlp::b2}));
  const auto add = [&](const std::string& name, std::vector<std::string> flags,
                       const std::string& fault, const std::string& reason,
                       nlohmann::json incident) {
    Drill drill;
    drill.name = "optimizers/" + name;
    flags.insert(flags.begin(), two.begin(), two.end());
    drill.flags = with(flags);
    drill.faults = {fault};
    drill.attempt = attempt;
    const bool skips = reason == "gradient";
    drill.verdict = skips ? "skip" : "halt";
    drill.exit_code = skips ? 0 : 3;
    drill.harmless = skips;
    drill.reason = reason;
    drill.incident = std::move(incident);
    drills.push_back(drill);
  };
  for (int rank = 0; rank < ranks; ++rank) {
    for (const std::string precision : {"bf16", "fp32"})
      add(fmt::format("micro_batch/{}/rank{}", precision, rank), {"--precision", precision},
          fmt::format("nonfinite:attempt={},rank={},param=hidden.bias,element=5,value=inf,"
                      "optimizer=1",
                      attempt, rank),
          "gradient",
          {{"stage", "micro_batch"},
           {"rank", rank},
           {"optimizer", "adam_biases"},
           {"parameter", "hidden.bias"},
           {"element", biases.global(rank, 5)}});
    add(fmt::format("state/rank{}", rank), {},
        fmt::format("state:attempt={},rank={},param={},element=77,value=inf,optimizer=0", attempt,
                    rank, parameter),
        "nonfinite_state",
        {{"stage", "state"},
         {"rank", rank},
         {"optimizer", "adam"},
         {"parameter", parameter},
         {"element", weights.owned(rank, 77)}});
  }
  for (const std::string phase : {"exchange", "stage", "gather", "confirm"})
    add(fmt::format("throw/{}/rank2", phase), {},
        fmt::format("throw:attempt={},rank=2,phase={}", attempt, phase),
        phase == "exchange" ? "window_failed" : "update_failed", {{"rank", 2}});
  add_death(drills, "optimizers/die/publish/rank3", two, "publish", 3, step);
}

/// On the machine's GPUs, where this build has them.
void add_devices(std::vector<Drill>& drills)
{
  if (cuda_device_count() == 0) return;
  std::vector<Drill> more;
  for (const Drill& drill : drills) {
    const bool one_of_each = drill.name.find("/rank3") != std::string::npos &&
                             drill.name.find("fp16") == std::string::npos;
    if (!one_of_each) continue;
    more.push_back(drill);
    more.back().name = "cuda/" + drill.name;
    more.back().flags.insert(more.back().flags.end(), {"--device", "cuda"});
  }
  drills.insert(drills.end(), more.begin(), more.end());
}

/// When the run must not go on.
void add_policies(std::vector<Drill>& drills)
{
  const auto halt = [&](const std::string& name, std::vector<std::string> flags,
                        std::vector<std::string> faults, std::uint64_t at,
                        const std::string& reason, nlohmann::json incident) {
    Drill drill;
    drill.name = name;
    drill.flags = with(flags);
    drill.faults = std::move(faults);
    drill.exit_code = 3;
    drill.attempt = at;
    drill.verdict = "halt";
    drill.reason = reason;
    drill.incident = std::move(incident);
    drill.said = {"last committed step"};
    drills.push_back(drill);
  };
  const Layout layout;
  for (int rank = 0; rank < ranks; ++rank) {
    halt(fmt::format("mismatch/loss_scale/rank{}", rank), {},
         {fmt::format("scale:attempt={},rank={},factor=2", attempt, rank)}, attempt,
         "control_mismatch", {{"rank", rank}});
    // A copy is one a node and slot where memory is shared; here each rank has its own.
    const std::size_t element = 4096 + 3;
    halt(fmt::format("replica/bitflip/rank{}", rank),
         {"--digest-every", "1", "--shared-memory", "off"},
         {fmt::format("bitflip:attempt={},rank={},param={},element={},bit=9", attempt, rank,
                      parameter, element)},
         attempt, "replica_mismatch",
         {{"rank", rank},
          {"optimizer", "adam"},
          {"parameter", parameter},
          {"element", layout.global(rank, 4096)},
          {"replica_block", 1}});
    for (const std::string precision : {"bf16", "fp32"})
      halt(fmt::format("policy/repeat_limit/{}/rank{}", precision, rank),
           {"--precision", precision, "--repeat-limit", "2"},
           {fmt::format("nonfinite:step={},rank={},param={},element=3,value=nan", step, rank,
                        parameter)},
           attempt + 1, "repeat_limit",
           {{"rank", rank},
            {"parameter", parameter},
            {"element", layout.global(rank, 3)},
            {"repeats", 2}});
  }
  const nlohmann::json overflow = {{"stage", "micro_batch"}, {"before_synchronization", true}};
  halt("policy/consecutive_skips", {"--init-scale", "1e15", "--max-consecutive-skips", "3"}, {}, 3,
       "consecutive_skips", overflow);
  halt("policy/minimum_scale", {"--init-scale", "1e15", "--min-scale", "5e14"}, {}, 2,
       "minimum_scale", overflow);
  halt("policy/skip_rate", {"--init-scale", "1e15", "--skip-window", "4", "--max-skip-rate", "0.5"},
       {}, 4, "skip_rate", overflow);
}

}  // namespace

std::vector<Drill> drill_catalogue()
{
  std::vector<Drill> drills;
  add_nonfinite(drills);
  add_exceptions(drills);
  add_deaths(drills);
  add_stalls(drills);
  add_policies(drills);
  add_two_optimizers(drills);
  add_devices(drills);
  return drills;
}

std::vector<std::string> drills_left_out()
{
  return {
      "nonfinite/accumulation/fp16, nonfinite/exchange/fp16: the greatest fp16 values are too "
      "small for their sum to leave fp32",
      "nonfinite/exchange on ranks 0 and 1: a sum is made in the order of the ranks, and the first "
      "contribution of each slot cannot overflow it",
      "nonfinite/unscale with bf16 and fp32: they run without a loss scale",
      "nonfinite/clip: clipping makes values smaller only",
      "cuda: where the build has no CUDA or the machine no GPU",
      "throw/publish: nothing can fail there; see die/publish",
  };
}

}  // namespace tutti::apps
