// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "incident_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "tutti/mpi_check.hpp"

namespace tutti::detail {
namespace {

std::string describe(const Offender& offender, const std::vector<Participant*>& participants)
{
  if (!offender.exists()) return "no offender was located";
  const auto stage = name_of(static_cast<Stage>(offender.stage));
  const std::string micro =
      offender.micro == ~0u ? std::string() : fmt::format(", micro-batch {}", offender.micro);
  if (offender.parameter == ~0u)
    return fmt::format("nonfinite loss on rank {}{}", offender.rank, micro);
  const float value = std::bit_cast<float>(offender.value_bits);
  const Participant& participant = *participants[offender.participant];
  return fmt::format("{} in {}/{} element {} of rank {} at stage {}{}",
                     std::isnan(value) ? "nan"
                     : value > 0       ? "inf"
                                       : "-inf",
                     participant.name(), participant.parameter_name(offender.parameter),
                     offender.element, offender.rank, stage, micro);
}

void describe_replica(const Circumstances& at, Incident& incident)
{
  const Participant& participant = *at.participants[at.ballot.replica.participant];
  incident.optimizer = participant.name();
  incident.parameter = participant.parameter_name(at.ballot.replica.parameter);
  incident.element = at.ballot.replica.element;
  incident.replica_block = at.ballot.replica.block;
  incident.count = at.ballot.replica_faults;
  incident.array = "weights";
  incident.precision = participant.precisions(at.ballot.replica.parameter);
}

void describe_offender(const Circumstances& at, const Offender& offender, Incident& incident)
{
  const auto stage = static_cast<Stage>(offender.stage);
  incident.stage = name_of(stage);
  incident.before_synchronization = stage <= Stage::accumulation;
  incident.value_bits = offender.value_bits;
  const float value = std::bit_cast<float>(offender.value_bits);
  incident.value = std::isnan(value)   ? "nan"
                   : std::isinf(value) ? (value > 0 ? "inf" : "-inf")
                                       : fmt::format("{}", value);
  incident.count = offender.count;
  if (offender.micro != ~0u) incident.micro = offender.micro;
  const int data_rank = static_cast<int>(offender.rank) / at.topology.model_parallel();
  incident.positions = incident.micro && *incident.micro < at.window.micro_batches()
                           ? at.window.positions(*incident.micro, data_rank)
                           : at.window.part(data_rank);
  if (offender.participant >= at.participants.size()) return;
  const Participant& participant = *at.participants[offender.participant];
  if (offender.parameter >= participant.parameters()) {
    if (participant.parameters() != 0) incident.precision = participant.precisions(0);
    return;
  }
  incident.optimizer = participant.name();
  incident.parameter = participant.parameter_name(offender.parameter);
  incident.element = offender.element;
  incident.contributor_known = stage != Stage::exchange || participant.knows_contributors();
  incident.precision = participant.precisions(offender.parameter);
}

}  // namespace

int speaker(const Circumstances& at, const Outcome& outcome)
{
  std::uint64_t rank = outcome.offender.exists() ? outcome.offender.rank : 0;
  switch (outcome.verdict.reason) {
    case Reason::control_mismatch:
      rank = outcome.verdict.rank;
      break;
    case Reason::replica_mismatch:
      rank = at.ballot.replica.rank;
      break;
    case Reason::window_failed:
    case Reason::update_failed:
    case Reason::partial_update:
      if (outcome.failure.exists()) rank = outcome.failure.rank;
      break;
    default:
      break;
  }
  return rank < static_cast<std::uint64_t>(at.topology.size()) ? static_cast<int>(rank) : 0;
}

Incident known_to_all(const Circumstances& at, const Outcome& outcome)
{
  const Verdict& verdict = outcome.verdict;
  Incident incident;
  incident.step = at.control.step;
  incident.attempt = outcome.attempt;
  incident.verdict = verdict.kind == VerdictKind::skip ? "skip" : "halt";
  incident.reason = name_of(verdict.reason);
  incident.window = outcome.window;
  incident.nonfinite = outcome.nonfinite;
  incident.ranks_with_nonfinite_loss = outcome.ranks_with_nonfinite_loss;
  incident.repeats = repeats(at.control, verdict, at.options.policy, outcome.window);
  incident.loss_scale = outcome.loss_scale;
  incident.largest_finite = static_cast<double>(std::bit_cast<float>(
                                static_cast<std::uint32_t>(at.ballot.largest_finite))) *
                            at.unscale(outcome.loss_scale);
  incident.rank = static_cast<std::uint32_t>(speaker(at, outcome));
  incident.checkpoint = at.checkpoint;
  incident.checkpoint_step = at.checkpoint_step;
  incident.data_parallel = static_cast<std::uint32_t>(at.topology.data_parallel());
  incident.model_parallel = static_cast<std::uint32_t>(at.topology.model_parallel());
  incident.micro_batches = at.window.micro_batches();
  incident.configuration = at.options.configuration;
  if (verdict.reason == Reason::control_mismatch) {
    incident.mismatch = name_of(verdict.field);
    const auto field = static_cast<std::size_t>(verdict.field);
    incident.mismatch_least =
        field < at.ballot.agreed.size() ? at.ballot.agreed[field].min : at.ballot.participants;
    incident.mismatch_greatest = field < at.ballot.agreed.size() ? at.ballot.agreed[field].max
                                                                 : at.options.policy.participants;
  } else if (verdict.reason == Reason::replica_mismatch) {
    describe_replica(at, incident);
  } else if (outcome.failure.exists()) {
    incident.failure_phase = name_of(static_cast<Phase>(outcome.failure.phase));
    incident.failure_code = outcome.failure.code;
    incident.failure_text = at.failure;
  } else if (outcome.offender.exists()) {
    describe_offender(at, outcome.offender, incident);
  }
  return incident;
}

void add_own_facts(const Circumstances& at, const Outcome& outcome, Incident& incident,
                   std::vector<NamedArray>& arrays)
{
  std::array<char, MPI_MAX_PROCESSOR_NAME + 1> node{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(node.data(), &length), "MPI_Get_processor_name");
  incident.node.assign(node.data(), static_cast<std::size_t>(length));
  incident.micro_losses = at.micro_losses;
  if (incident.stage.empty()) return;
  const Offender& offender = outcome.offender;
  if (!incident.parameter.empty()) {
    const OffenderDetail detail = at.participants[offender.participant]->detail(offender);
    if (detail.count != 0) incident.count = detail.count;
    incident.array = detail.array;
    if (detail.gradient_magnitude)
      incident.magnitude = *detail.gradient_magnitude * at.unscale(outcome.loss_scale);
  }
  // An update's owner had no part in what the samples of all ranks came to.
  const bool of_samples = static_cast<Stage>(offender.stage) <= Stage::exchange;
  if (!of_samples || !at.options.evidence || incident.positions.empty()) return;
  Evidence evidence = at.options.evidence(incident.positions);
  constexpr std::size_t most_ids = 4096;
  evidence.sample_ids.resize(std::min(evidence.sample_ids.size(), most_ids));
  incident.sample_ids = std::move(evidence.sample_ids);
  arrays = std::move(evidence.arrays);
}

std::string message_of(const Circumstances& at, const Outcome& outcome, const Incident& incident)
{
  const Verdict& verdict = outcome.verdict;
  const std::uint64_t step = at.control.step;
  const std::string_view reason = name_of(verdict.reason);
  if (!incident.mismatch.empty() && verdict.field == AgreedField::participants)
    return fmt::format("step {}: halted ({}: {} of {} participants took part)", step, reason,
                       at.ballot.participants, at.options.policy.participants);
  if (!incident.mismatch.empty())
    return fmt::format("step {}: halted ({}: {} on rank {} differs)", step, reason,
                       incident.mismatch, verdict.rank);
  if (incident.replica_block)
    return fmt::format(
        "step {}: halted ({}: {}/{} block {} on rank {} is not what its owner wrote; {})", step,
        reason, incident.optimizer, incident.parameter, *incident.replica_block, incident.rank,
        incident.checkpoint.empty() ? "there is no checkpoint to go back to"
                                    : fmt::format("go back to {} of step {}", incident.checkpoint,
                                                  incident.checkpoint_step));
  if (!incident.failure_phase.empty())
    return fmt::format("step {}: halted ({} on rank {} in phase {}: {})", step, reason,
                       incident.rank, incident.failure_phase, incident.failure_text);
  std::string text = fmt::format("step {}: {} ({}: {})", step,
                                 verdict.kind == VerdictKind::skip ? "skipped" : "halted", reason,
                                 describe(outcome.offender, at.participants));
  text.pop_back();
  if (verdict.reason == Reason::repeat_limit)
    text += fmt::format("; samples at positions {} to {} broke it {} times", outcome.window.begin,
                        outcome.window.end - 1, incident.repeats);
  if (incident.recomputation)
    text += fmt::format("; computed again: {}", incident.recomputation->failure.empty()
                                                    ? name_of(incident.recomputation->cause)
                                                    : "no result");
  return text + ")";
}

}  // namespace tutti::detail
