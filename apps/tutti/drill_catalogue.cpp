// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The catalogue. What a fault's element is in the whole parameter, and who owns it, comes from the
// shard plan of the job: the drill knows it before the job runs.
#include "drill_catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
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

using Words = std::vector<std::string>;

const Words& base()
{
  static const Words flags = {"--model-parallel", "2",   "--hidden", fmt::format("{}", hidden),
                              "--batch",          "64",  "--steps",  "6",
                              "--micro-batches",  "2",   "--seed",   "7",
                              "--init-scale",     "1024"};
  return flags;
}

Words operator+(Words flags, const Words& more)
{
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Words with(const Words& more) { return base() + more; }

/// The end of a run that halts, and has mutated nothing, in the attempt after `steps` updates.
Words ended_after(Words flags, std::uint64_t steps)
{
  *(std::find(flags.begin(), flags.end(), "--steps") + 1) = fmt::format("{}", steps);
  return flags;
}

/// Of the model, some or all of them.
ParameterSet parameters(std::size_t inputs, const std::vector<std::size_t>& which = {
                                                Mlp::w1, Mlp::b1, Mlp::w2, Mlp::b2})
{
  const ParameterSet all =
      Mlp::parameters({.inputs = inputs, .hidden = hidden, .precision = Precision::fp32});
  ParameterSet some;
  for (const std::size_t p : which) some.add(all[p]);
  return some;
}

/// A parameter as the ranks of an optimizer hold and own it: by default hidden.weight.
class Layout {
 public:
  explicit Layout(const ParameterSet& set, std::size_t index = 0, int model = model_parallel)
      : index_(index), model_(model), plan_(set, ranks / model, model)
  {
  }
  /// Global index of an element of the piece of `rank`; it wraps around, as it does in a fault.
  std::size_t global(int rank, std::size_t element) const
  {
    return piece(rank).global_index(element % piece(rank).elements);
  }
  int owner(int rank, std::size_t element) const
  {
    return plan_.owner(rank % model_, block_of(rank, element)).rank;
  }
  /// Global index of an element of what `rank` owns of hidden.weight: its shard begins with it.
  std::size_t owned(int rank, std::size_t element) const
  {
    const std::size_t first = plan_.shard(rank).front() - piece(rank).first_block;
    return global(rank, first * block_elements + element);
  }

 private:
  const Piece& piece(int rank) const { return plan_.layout(rank % model_).piece(index_); }
  std::size_t block_of(int rank, std::size_t element) const
  {
    return piece(rank).first_block + element % piece(rank).elements / block_elements;
  }
  std::size_t index_;
  int model_;
  ShardPlan plan_;
};

std::string bad_gradient(int rank, int micro, std::size_t element, const char* value)
{
  return fmt::format("nonfinite:attempt={},rank={},micro={},param={},element={},value={}", attempt,
                     rank, micro, parameter, element, value);
}

/// A value that goes nonfinite at a stage: what the incident must say of it.
void add_nonfinite(std::vector<Drill>& drills, std::size_t inputs)
{
  const Layout layout(parameters(inputs));
  for (const std::string precision : precisions)
    for (int rank = 0; rank < ranks; ++rank)
      for (const std::string policy : sample_policies) {
        const auto cell = [&](const std::string& stage, const std::string& reason) {
          Drill drill;
          drill.name = fmt::format("nonfinite/{}/{}/rank{}/{}", stage, precision, rank, policy);
          drill.flags = with({"--precision", precision, "--samples", policy});
          // The loss scale stays, so that nothing but the window itself can change the end: with
          // replay nothing does, with drop its samples are missing, whatever made them bad.
          if (precision == "fp16") drill.flags = drill.flags + Words{"--hysteresis", "2"};
          drill.ends_as = drill.flags;
          if (policy == "drop")
            drill.ends_as =
                drill.flags +
                Words{"--fault", fmt::format("loss:attempt={},rank=*,value=inf", attempt)};
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
        const bool scaled = precision == "fp16";
        const std::size_t element = 700 * static_cast<std::size_t>(rank) + 5003;

        Drill loss = cell("loss", "loss");
        loss.faults = {fmt::format("loss:attempt={},rank={},micro=1,value=nan", attempt, rank)};
        loss.incident.update({{"micro", 1}, {"value", "nan"}, {"before_synchronization", true}});
        drills.push_back(loss);

        Drill micro = cell("micro_batch", "gradient");
        micro.faults = {bad_gradient(rank, 1, element, "-inf")};
        at(micro, layout.global(rank, element));
        micro.incident.update(
            {{"micro", 1}, {"value", "-inf"}, {"count", 1}, {"before_synchronization", true}});
        drills.push_back(micro);

        if (!scaled) {  // see drills_left_out()
          Drill accumulation = cell("accumulation", "gradient");
          accumulation.faults = {bad_gradient(rank, 0, element, "3e38"),
                                 bad_gradient(rank, 1, element, "3e38")};
          at(accumulation, layout.global(rank, element));
          accumulation.incident.update({{"micro", 1}, {"before_synchronization", true}});
          drills.push_back(accumulation);
        }
        if (!scaled && rank >= model_parallel) {
          Drill exchange = cell("exchange", "gradient");
          exchange.faults = {bad_gradient(rank - model_parallel, 0, element, "3e38"),
                             bad_gradient(rank, 0, element, "3e38")};
          at(exchange, layout.global(rank, element));
          exchange.incident.update(
              {{"value", "inf"}, {"before_synchronization", false}, {"contributor_known", true}});
          drills.push_back(exchange);
        }
        if (scaled) {  // the scale brings it over the end of fp32
          Drill unscale = cell("unscale", "update");
          for (auto* flags : {&unscale.flags, &unscale.ends_as})
            *flags = *flags + Words{"--init-scale", "1e-35"};
          unscale.faults = {bad_gradient(rank, 1, element, "65504")};
          at(unscale, layout.global(rank, element));
          unscale.incident["rank"] = layout.owner(rank, element);
          unscale.incident.update({{"value", "inf"}, {"before_synchronization", false}});
          drills.push_back(unscale);
        }
        Drill update = cell("update", "update");
        update.faults = {fmt::format("update:attempt={},rank={}", attempt, rank)};
        at(update, layout.owned(rank, 0));
        update.incident["before_synchronization"] = false;
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
        state.ends_as.clear();  // the state is what was damaged
        drills.push_back(state);
      }
}

const Words& saving()
{
  static const Words flags = {"--checkpoint-dir",  "saved", "--checkpoint-every", "2",
                              "--checkpoint-keep", "1"};
  return flags;
}

/// The phases of a save that every rank comes to, and those that one rank does for all.
constexpr std::array<const char*, 3> common_save_phases = {"save_prepare", "save_payload",
                                                           "save_sync"};
constexpr std::array<const char*, 4> single_save_phases = {"save_complete", "save_publish",
                                                           "save_pointer", "save_retain"};

/// Calls `add` for each phase of a save and some of the ranks that come to it.
template <class Add>
void for_save_phases(const Add& add)
{
  for (const char* const phase : common_save_phases)
    for (const int rank : {0, 3}) add(phase, rank);
  for (const char* const phase : single_save_phases) add(phase, 0);
}

/// With one model-parallel slot every rank but the first can be the one that overflows the sum.
void add_four_by_one(std::vector<Drill>& drills, std::size_t inputs)
{
  const Layout layout(parameters(inputs), 0, 1);
  for (const std::string precision : {"bf16", "fp32"})
    for (int rank = 1; rank < ranks; ++rank) {
      Drill drill;
      const std::size_t element = 700 * static_cast<std::size_t>(rank) + 9003;
      drill.name = fmt::format("nonfinite/exchange/{}/4x1/rank{}", precision, rank);
      drill.flags = with({"--model-parallel", "1", "--precision", precision});
      drill.faults = {bad_gradient(0, 1, element, "3e38"), bad_gradient(rank, 0, element, "3e38")};
      drill.attempt = attempt;
      drill.verdict = "skip";
      drill.reason = "gradient";
      drill.incident = {{"stage", "exchange"},
                        {"rank", rank},
                        {"parameter", parameter},
                        {"element", layout.global(rank, element)},
                        {"contributor_known", true}};
      drill.ends_as = drill.flags;
      drills.push_back(drill);
    }
}

/// An update in place cannot be taken back: what is nonfinite in it halts.
void add_in_place(std::vector<Drill>& drills, std::size_t inputs)
{
  const Layout layout(parameters(inputs));
  for (const std::string precision : precisions)
    for (int rank = 0; rank < ranks; ++rank)
      for (const std::string stage : {"update", "state"}) {
        Drill drill;
        drill.name = fmt::format("in_place/{}/{}/rank{}", stage, precision, rank);
        drill.flags = with({"--precision", precision, "--update", "in_place"});
        const bool state = stage == "state";
        drill.faults = {state
                            ? fmt::format("state:attempt={},rank={},param={},element=77,value=nan",
                                          attempt, rank, parameter)
                            : fmt::format("update:attempt={},rank={}", attempt, rank)};
        drill.attempt = attempt;
        drill.verdict = "halt";
        drill.reason = "partial_update";
        drill.exit_code = 3;
        // The old state is gone, so it cannot be told from what the update made of it.
        drill.incident = {{"stage", "update"},
                          {"rank", rank},
                          {"parameter", parameter},
                          {"element", layout.owned(rank, state ? 77 : 0)}};
        drills.push_back(drill);
      }
}

/// A window that is computed again: the cause, and no change of anything else.
void add_recomputations(std::vector<Drill>& drills)
{
  const auto cell = [&](const std::string& name, Words flags) {
    Drill drill;
    drill.name = "recompute/" + name;
    drill.flags = with(flags) + Words{"--recompute-on-fault", "on"};
    drill.attempt = attempt;
    drill.verdict = "skip";
    drill.ends_as = with(flags);
    return drill;
  };
  for (const std::string precision : {"bf16", "fp32"})
    for (int rank = 0; rank < ranks; ++rank)
      for (const std::string cause : {"transient", "machine"}) {
        const std::string permanent = cause == "machine" ? ",permanent=yes" : "";
        const int other = (rank + model_parallel) % ranks;
        const auto add = [&](const std::string& stage, const std::string& reason, Words faults) {
          Drill drill = cell(fmt::format("{}/{}/{}/rank{}", cause, stage, precision, rank),
                             {"--precision", precision});
          for (const std::string& fault : faults) drill.faults.push_back(fault + permanent);
          drill.reason = reason;
          drill.incident = {{"stage", stage},
                            {"rank", rank},
                            {"/recomputation/cause", cause},
                            {"/recomputation/other", other}};
          drills.push_back(drill);
        };
        add("loss", "loss", {fmt::format("loss:attempt={},rank={},micro=1", attempt, rank)});
        add("micro_batch", "gradient", {bad_gradient(rank, 1, 5003, "nan")});
        add("accumulation", "gradient",
            {bad_gradient(rank, 0, 5003, "3e38"), bad_gradient(rank, 1, 5003, "3e38")});
      }
  Drill data = cell("data", {"--init-scale", "1e15", "--max-consecutive-skips", "2"});
  data.attempt = 1;
  data.reason = "gradient";
  data.exit_code = 3;
  data.incident = {{"/recomputation/cause", "data"}};
  drills.push_back(data);

  for (int rank = 0; rank < ranks; ++rank) {
    const Words flags = {"--precision", "fp32"};
    const std::string bad = bad_gradient(1, 0, 3, "inf");
    const auto phase = [&](const std::string& kind) {
      return fmt::format("{}:attempt={},rank={},phase=recompute", kind, attempt, rank);
    };
    Drill failing = cell(fmt::format("throw/rank{}", rank), flags);
    failing.faults = {bad, phase("throw")};
    failing.reason = "gradient";
    failing.incident = {{"/recomputation/cause", "unknown"},
                        {"/recomputation/failure",
                         fmt::format("rank {}: planned exception in phase recompute", rank)}};
    drills.push_back(failing);
    if (rank % 2 == 0) continue;
    Drill stalling = cell(fmt::format("stall/rank{}", rank), flags);
    stalling.flags = stalling.flags + Words{"--watchdog", "2"};
    stalling.faults = {bad, phase("stall")};
    stalling.exit_code = 4;
    stalling.attempt = 0;
    stalling.ends_as.clear();
    stalling.said = {fmt::format("rank {} hangs", rank),
                     fmt::format("in phase recompute of step {}", step)};
    drills.push_back(stalling);
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
        if (drill.reason != "partial_update") drill.ends_as = ended_after(drill.flags, step);
        drills.push_back(drill);
      }
  for_save_phases([&](const std::string& phase, int rank) {
    Drill drill;
    drill.name = fmt::format("throw/{}/rank{}", phase, rank);
    drill.flags = with(saving());
    drill.faults = {fmt::format("throw:step=4,rank={},phase={}", rank, phase)};
    drill.exit_code = 1;
    drill.resumes = true;
    drill.ends_as = drill.flags;
    drill.said = {"planned exception in phase " + phase};
    drills.push_back(drill);
  });
}

/// The next run begins at the last checkpoint that is whole, and ends as if nothing had happened.
void add_death(std::vector<Drill>& drills, const std::string& name, Words flags,
               const std::string& phase, int rank, std::uint64_t at)
{
  Drill drill;
  drill.name = name;
  drill.flags = with(flags + saving());
  drill.ends_as = drill.flags;
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
  for_save_phases([&](const std::string& phase, int rank) { add(phase, rank, 4); });
}

/// A rank that stands still is named, with its place.
void add_stalls(std::vector<Drill>& drills)
{
  const auto add = [&](const std::string& phase, int rank, std::uint64_t at, const Words& more) {
    Drill drill;
    drill.name = fmt::format("stall/{}/rank{}", phase, rank);
    drill.flags = with(more + Words{"--watchdog", "2"});
    drill.faults = {fmt::format("stall:step={},rank={},phase={}", at, rank, phase)};
    drill.exit_code = 4;
    drill.said = {fmt::format("rank {} hangs", rank),
                  fmt::format("in phase {} of step {}", phase, at)};
    drills.push_back(drill);
  };
  for (const std::string phase :
       {"window", "exchange", "ballot", "stage", "gather", "confirm", "publish"})
    for (const int rank : {0, 3}) add(phase, rank, step, {});
  for_save_phases([&](const std::string& phase, int rank) { add(phase, rank, 4, saving()); });
}

/// Two optimizers, one for the weights and one for the biases: still one outcome.
void add_two_optimizers(std::vector<Drill>& drills, std::size_t inputs)
{
  const Words two = {"--bias-optimizer", "own"};
  const Layout weights(parameters(inputs, {Mlp::w1, Mlp::w2})),
      biases(parameters(inputs, {Mlp::b1, Mlp::b2}));
  const auto add = [&](const std::string& name, Words flags, const std::string& fault,
                       const std::string& reason, nlohmann::json incident) {
    Drill drill;
    drill.name = "optimizers/" + name;
    flags.insert(flags.begin(), two.begin(), two.end());
    drill.flags = with(flags);
    drill.faults = {fault};
    drill.attempt = attempt;
    const bool skips = reason == "gradient";
    drill.verdict = skips ? "skip" : "halt";
    drill.exit_code = skips ? 0 : 3;
    if (reason != "nonfinite_state")
      drill.ends_as = skips ? drill.flags : ended_after(drill.flags, step);
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
void add_policies(std::vector<Drill>& drills, std::size_t inputs)
{
  const auto halt = [&](const std::string& name, Words flags, Words faults, std::uint64_t at,
                        const std::string& reason, nlohmann::json incident,
                        std::uint64_t after = step) {
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
    drill.ends_as = ended_after(drill.flags, after);
    drills.push_back(drill);
  };
  const Layout layout(parameters(inputs));
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
       "consecutive_skips", overflow, 0);
  halt("policy/minimum_scale", {"--init-scale", "1e15", "--min-scale", "5e14"}, {}, 2,
       "minimum_scale", overflow, 0);
  halt("policy/skip_rate", {"--init-scale", "1e15", "--skip-window", "4", "--max-skip-rate", "0.5"},
       {}, 4, "skip_rate", overflow, 0);
}

}  // namespace

std::vector<Drill> drill_catalogue(std::size_t inputs)
{
  std::vector<Drill> drills;
  add_nonfinite(drills, inputs);
  add_four_by_one(drills, inputs);
  add_in_place(drills, inputs);
  add_recomputations(drills);
  add_exceptions(drills);
  add_deaths(drills);
  add_stalls(drills);
  add_policies(drills, inputs);
  add_two_optimizers(drills, inputs);
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
      "nonfinite/exchange in recompute: a sum's parts are finite, so they come again; see the "
      "tests",
      "cuda: where the build has no CUDA or the machine no GPU",
      "throw/publish: nothing can fail there; see die/publish",
  };
}

}  // namespace tutti::apps
