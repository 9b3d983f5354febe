// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The names of the vocabulary, as they stand in logs, incidents and documents.
#include "tutti/verdict.hpp"

#include <array>

namespace tutti {
namespace {

template <std::size_t N, class E>
std::string_view pick(const std::array<std::string_view, N>& names, E value)
{
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : std::string_view("unknown");
}

}  // namespace

std::string_view name_of(Reason reason)
{
  static constexpr std::array<std::string_view, reason_count> names = {
      "none",          "gradient",          "loss",           "update",          "control_mismatch",
      "window_failed", "update_failed",     "partial_update", "nonfinite_state", "repeat_limit",
      "minimum_scale", "consecutive_skips", "skip_rate",      "replica_mismatch"};
  return pick(names, reason);
}

std::string_view name_of(Stage stage)
{
  static constexpr std::array<std::string_view, 8> names = {
      "loss", "micro_batch", "accumulation", "exchange", "unscale", "clip", "update", "state"};
  return pick(names, stage);
}

std::string_view name_of(Phase phase)
{
  static constexpr std::array<std::string_view, phase_count> names = {
      "window",    "exchange",      "ballot",       "stage",        "gather",
      "confirm",   "publish",       "recompute",    "save_prepare", "save_payload",
      "save_sync", "save_complete", "save_publish", "save_pointer", "save_retain"};
  return pick(names, phase);
}

std::string_view name_of(AgreedField field)
{
  static constexpr std::array<std::string_view, agreed_fields> names = {
      "step",          "attempt",    "loss_scale",    "learning_rate",
      "configuration", "shard_plan", "control_state", "participants"};
  return pick(names, field);
}

}  // namespace tutti
