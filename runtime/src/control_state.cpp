// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Digest and text form of the control state. What moves it is decide.cpp.
#include "tutti/control_state.hpp"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using json = nlohmann::json;

/// Doubles travel as their 64 bits: no reader's rounding can touch them.
std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

json intervals_to_json(const std::vector<Interval>& list)
{
  json out = json::array();
  for (Interval interval : list) out.push_back({interval.begin, interval.end});
  return out;
}

constexpr std::size_t first_version_reasons = 12;

std::vector<Interval> intervals_from_json(const json& list)
{
  std::vector<Interval> out;
  for (const json& pair : list) {
    const Interval interval{pair.at(0).get<std::uint64_t>(), pair.at(1).get<std::uint64_t>()};
    if (interval.end < interval.begin) throw CheckpointError("interval runs backwards");
    out.push_back(interval);
  }
  return out;
}

}  // namespace

double skip_rate(std::uint64_t history, std::uint64_t attempts, std::uint64_t window)
{
  attempts = std::min({window, attempts, std::uint64_t{64}});
  if (attempts == 0) return 0;
  const std::uint64_t taken =
      attempts == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << attempts) - 1;
  return static_cast<double>(std::popcount(history & taken)) / static_cast<double>(attempts);
}

double ControlState::skip_rate(std::uint64_t window) const
{
  return tutti::skip_rate(skip_history, attempt, window);
}

void ControlState::make_room()
{
  offenders.reserve(offenders.size() + 1);
  for (std::vector<Interval>* list : {&ledger.replay, &ledger.committed, &ledger.dropped})
    list->reserve(list->size() + 1);
}

std::uint64_t ControlState::digest() const
{
  std::uint64_t hash = hash_of("tutti control state 1");
  for (std::uint64_t word :
       {step, attempt, bits(loss_scale), growth_tracker, hysteresis, consecutive_skips, samples,
        ema_updates, pending_save, ledger.digest()})
    hash = mix64(hash, word);
  // What came after the first version counts only where there is some, so that its files' digests
  // stay what they were.
  for (std::size_t reason = 0; reason < skips.size(); ++reason) {
    if (reason < first_version_reasons)
      hash = mix64(hash, skips[reason]);
    else if (skips[reason] != 0)
      hash = mix64(mix64(hash, reason), skips[reason]);
  }
  if (skip_history != 0) hash = mix64(mix64(hash, hash_of("skip history")), skip_history);
  for (const RepeatOffender& offender : offenders)
    hash = mix64(mix64(hash, offender.begin), offender.count);
  for (const ParameterClock& clock : clocks)
    hash = mix64(mix64(mix64(hash, clock.steps), bits(clock.beta1_product)),
                 bits(clock.beta2_product));
  return hash;
}

std::string to_json(const ControlState& state)
{
  json offenders = json::array();
  for (const RepeatOffender& offender : state.offenders)
    offenders.push_back({offender.begin, offender.count});
  json clocks = json::array();
  for (const ParameterClock& clock : state.clocks)
    clocks.push_back({clock.steps, bits(clock.beta1_product), bits(clock.beta2_product)});
  const json out = {
      {"step", state.step},
      {"attempt", state.attempt},
      {"loss_scale", state.loss_scale},
      {"loss_scale_bits", bits(state.loss_scale)},
      {"growth_tracker", state.growth_tracker},
      {"hysteresis", state.hysteresis},
      {"consecutive_skips", state.consecutive_skips},
      {"samples", state.samples},
      {"ema_updates", state.ema_updates},
      {"skips", state.skips},
      {"skip_history", state.skip_history},
      {"pending_save", state.pending_save},
      {"offenders", offenders},
      {"clocks", clocks},
      {"ledger",
       {{"epoch_samples", state.ledger.epoch_samples},
        {"next", state.ledger.next},
        {"replay", intervals_to_json(state.ledger.replay)},
        {"committed", intervals_to_json(state.ledger.committed)},
        {"dropped", intervals_to_json(state.ledger.dropped)}}},
  };
  return out.dump();
}

ControlState control_state_from_json(const std::string& text)
{
  try {
    const json in = json::parse(text);
    ControlState state;
    in.at("step").get_to(state.step);
    in.at("attempt").get_to(state.attempt);
    state.loss_scale = std::bit_cast<double>(in.at("loss_scale_bits").get<std::uint64_t>());
    in.at("growth_tracker").get_to(state.growth_tracker);
    in.at("hysteresis").get_to(state.hysteresis);
    in.at("consecutive_skips").get_to(state.consecutive_skips);
    in.at("samples").get_to(state.samples);
    in.at("ema_updates").get_to(state.ema_updates);
    const auto counts = in.at("skips").get<std::vector<std::uint64_t>>();
    if (counts.size() < first_version_reasons || counts.size() > state.skips.size())
      throw CheckpointError(
          "control state cannot be read (it counts skips for reasons that are not known); use the "
          "tutti that wrote it");
    std::copy(counts.begin(), counts.end(), state.skips.begin());
    state.skip_history = in.value("skip_history", std::uint64_t{0});
    in.at("pending_save").get_to(state.pending_save);
    for (const json& pair : in.at("offenders"))
      state.offenders.push_back({pair.at(0).get<std::uint64_t>(), pair.at(1).get<std::uint64_t>()});
    for (const json& clock : in.at("clocks"))
      state.clocks.push_back({clock.at(0).get<std::uint64_t>(),
                              std::bit_cast<double>(clock.at(1).get<std::uint64_t>()),
                              std::bit_cast<double>(clock.at(2).get<std::uint64_t>())});
    const json& ledger = in.at("ledger");
    ledger.at("epoch_samples").get_to(state.ledger.epoch_samples);
    ledger.at("next").get_to(state.ledger.next);
    state.ledger.replay = intervals_from_json(ledger.at("replay"));
    state.ledger.committed = intervals_from_json(ledger.at("committed"));
    state.ledger.dropped = intervals_from_json(ledger.at("dropped"));
    return state;
  } catch (const json::exception& error) {
    throw CheckpointError(std::string("control state cannot be read (") + error.what() +
                          "); the checkpoint is damaged or of another version");
  }
}

}  // namespace tutti
