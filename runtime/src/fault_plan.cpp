// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/fault_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "tutti/error.hpp"

namespace tutti {
namespace {

/// A kind's name, and the keys that it takes besides step and attempt.
struct KindSpec {
  FaultKind kind;
  std::string_view name;
  std::vector<std::string_view> required, optional;
};

const std::vector<KindSpec>& kinds()
{
  static const std::vector<KindSpec> table = {
      {FaultKind::nonfinite,
       "nonfinite",
       {"rank"},
       {"micro", "param", "element", "value", "optimizer", "permanent"}},
      {FaultKind::loss, "loss", {"rank"}, {"value", "micro", "permanent"}},
      {FaultKind::scale, "scale", {"rank"}, {"factor"}},
      {FaultKind::update, "update", {"rank"}, {"optimizer"}},
      {FaultKind::state, "state", {"rank"}, {"param", "element", "value", "optimizer"}},
      {FaultKind::bitflip, "bitflip", {"rank"}, {"param", "element", "bit", "optimizer"}},
      {FaultKind::throw_, "throw", {"rank", "phase"}, {}},
      {FaultKind::die, "die", {"rank", "phase"}, {"process"}},
      {FaultKind::stall, "stall", {"rank", "phase"}, {"seconds"}},
  };
  return table;
}

[[noreturn]] void refuse(const std::string& text, const std::string& reason,
                         const std::string& suggestion)
{
  throw ConfigError(fmt::format("fault '{}' cannot be used ({}); {}", text, reason, suggestion));
}

template <class Number>
Number number(const std::string& fault, std::string_view key, std::string_view value)
{
  Number out{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (error != std::errc{} || end != value.data() + value.size())
    refuse(fault, fmt::format("{}={} is not a number of its kind", key, value),
           fmt::format("give {} a plain number", key));
  return out;
}

float value_of(const std::string& fault, std::string_view value)
{
  if (value == "inf") return std::numeric_limits<float>::infinity();
  if (value == "-inf") return -std::numeric_limits<float>::infinity();
  if (value == "nan") return std::numeric_limits<float>::quiet_NaN();
  float number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size())
    refuse(fault, fmt::format("value={} is not a number of fp32", value),
           "use inf, -inf, nan or a number");
  return number;
}

Phase phase_named(const std::string& fault, std::string_view value)
{
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < phase_count; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (name_of(phase) == value) return phase;
    names.push_back(name_of(phase));
  }
  refuse(fault, fmt::format("phase={} is not known", value),
         fmt::format("use one of {}", fmt::join(names, ", ")));
}

std::vector<std::string_view> split(std::string_view text, char separator)
{
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

Fault parse_fault(const std::string& text)
{
  const std::string_view view = text;
  const std::size_t colon = view.find(':');
  const std::string_view kind = view.substr(0, colon);
  const auto spec = std::find_if(kinds().begin(), kinds().end(),
                                 [&](const KindSpec& candidate) { return candidate.name == kind; });
  if (spec == kinds().end())
    refuse(text, fmt::format("kind '{}' is not known", kind),
           "use nonfinite, loss, scale, update, state, bitflip, throw, die or stall");
  if (colon == std::string_view::npos) refuse(text, "it has no keys", "write kind:key=value,...");

  Fault fault;
  fault.kind = spec->kind;
  fault.value = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::string_view> seen;
  for (std::string_view pair : split(view.substr(colon + 1), ',')) {
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    if (equals == std::string_view::npos || equals + 1 == pair.size())
      refuse(text, fmt::format("'{}' is not key=value", pair), "write kind:key=value,...");
    const std::string_view value = pair.substr(equals + 1);
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      refuse(text, fmt::format("{} is given twice", key), "give each key once");
    seen.push_back(key);
    const auto takes = [&](const std::vector<std::string_view>& keys) {
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    };
    if (key != "step" && key != "attempt" && !takes(spec->required) && !takes(spec->optional))
      refuse(text, fmt::format("{} takes no key '{}'", kind, key),
             fmt::format("it takes step or attempt, {}{}{}", fmt::join(spec->required, ", "),
                         spec->optional.empty() ? "" : ", ", fmt::join(spec->optional, ", ")));
    if (key == "step") fault.step = number<std::uint64_t>(text, key, value);
    if (key == "attempt") fault.attempt = number<std::uint64_t>(text, key, value);
    if (key == "rank" && value == "*") fault.rank = std::nullopt;
    if (key == "rank" && value != "*") fault.rank = number<int>(text, key, value);
    if (key == "micro") fault.micro = number<std::uint32_t>(text, key, value);
    if (key == "param") fault.parameter = value;
    if (key == "element") fault.element = number<std::uint64_t>(text, key, value);
    if (key == "value") fault.value = value_of(text, value);
    if (key == "factor") fault.factor = number<double>(text, key, value);
    if (key == "bit") fault.bit = number<unsigned>(text, key, value);
    if (key == "optimizer") fault.optimizer = number<std::size_t>(text, key, value);
    if (key == "phase") fault.phase = phase_named(text, value);
    if (key == "seconds") fault.seconds = number<double>(text, key, value);
    if (key == "permanent") {
      if (value != "yes" && value != "no")
        refuse(text, fmt::format("permanent={} is not known", value), "use yes or no");
      fault.permanent = value == "yes";
    }
    if (key == "process") {
      if (value != "self" && value != "launcher")
        refuse(text, fmt::format("process={} is not known", value), "use self or launcher");
      fault.launcher = value == "launcher";
    }
  }
  if (fault.step.has_value() == fault.attempt.has_value())
    refuse(text, "it needs exactly one of step and attempt", "add step=N or attempt=N");
  if (fault.attempt == 0u) refuse(text, "attempts count from 1", "use attempt=1 for the first");
  for (std::string_view key : spec->required)
    if (std::find(seen.begin(), seen.end(), key) == seen.end())
      refuse(text, fmt::format("{} is missing", key), fmt::format("add {}=...", key));
  if (fault.rank.value_or(0) < 0) refuse(text, "rank is negative", "use a world rank from 0");
  if (fault.bit > 31) refuse(text, "bit is over 31", "use a bit from 0 to 31");
  if (!(fault.seconds >= 0)) refuse(text, "seconds is negative", "give the seconds of the stall");
  if (fault.kind == FaultKind::throw_ && fault.phase == Phase::publish)
    refuse(text, "publish cannot throw", "use die or stall there, or throw in confirm");
  return fault;
}

std::vector<const Fault*> FaultPlan::firing(FaultKind kind, int rank, std::uint64_t step,
                                            std::uint64_t attempt) const
{
  std::vector<const Fault*> out;
  for (const Fault& fault : faults_)
    if (fault.kind == kind && fault.rank.value_or(rank) == rank &&
        (fault.step ? *fault.step == step : *fault.attempt == attempt))
      out.push_back(&fault);
  return out;
}

void FaultPlan::reach(Phase phase, int rank, std::uint64_t step, std::uint64_t attempt) const
{
  if (faults_.empty()) return;
  for (const Fault* fault : firing(FaultKind::stall, rank, step, attempt)) {
    if (fault->phase != phase) continue;
    if (fault->seconds > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(fault->seconds));
    else
      while (true) ::pause();
  }
  for (const Fault* fault : firing(FaultKind::die, rank, step, attempt)) {
    if (fault->phase != phase) continue;
    ::kill(fault->launcher ? ::getppid() : ::getpid(), SIGKILL);
    while (true) ::pause();  // an orphan waits for its end, it does not go on alone
  }
  for (const Fault* fault : firing(FaultKind::throw_, rank, step, attempt))
    if (fault->phase == phase)
      throw std::runtime_error(fmt::format("planned exception in phase {}", name_of(phase)));
}

}  // namespace tutti
