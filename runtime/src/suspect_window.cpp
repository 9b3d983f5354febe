// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "suspect_window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>
#include <optional>

#include "guarded.hpp"
#include "tutti/digest.hpp"

namespace tutti {

bool Coordinator::SuspectWindow::is_to_blame(const Outcome& outcome) const
{
  const Offender& offender = outcome.offender;
  if (!offender.exists() || outcome.failure.exists() ||
      outcome.verdict.reason == Reason::control_mismatch ||
      outcome.verdict.reason == Reason::replica_mismatch ||
      offender.rank >= static_cast<std::uint32_t>(c_.topology_.size()))
    return false;
  const auto stage = static_cast<Stage>(offender.stage);
  return stage < Stage::exchange ||
         (stage == Stage::exchange && c_.participants_[offender.participant]->knows_contributors());
}

Recomputation Coordinator::SuspectWindow::compute_again(int suspect)
{
  const Topology& topology = c_.topology_;
  const int model = topology.model_parallel();
  const int group = suspect / model, next = (group + 1) % topology.data_parallel();
  Account own;
  own.arithmetic = hash_of(c_.options_.arithmetic);
  Failure failure;
  std::string text;
  if (topology.data_rank() == group)
    c_.locally(Phase::recompute, failure, text, [&] {
      std::vector<double> losses;
      for (const auto& micro : window_.micro_losses_) losses.push_back(micro.sum);
      digest(losses, own.first, own.first_finite);
    });
  if (topology.data_rank() == group || topology.data_rank() == next) {
    std::vector<double> losses = compute(group, failure, text);
    c_.locally(Phase::recompute, failure, text,
               [&] { digest(losses, own.again, own.again_finite); });
  }
  own.failed = failure.exists() ? 1 : 0;
  return agree_on_cause(own, suspect, next * model + suspect % model, std::move(text));
}

/// Collective over the model axis: the passes of a data-parallel group's window, on this rank;
/// the losses' sums. Every pass is made, whatever fails.
std::vector<double> Coordinator::SuspectWindow::compute(int group, Failure& failure,
                                                        std::string& text)
{
  std::vector<double> losses;
  detail::guarded(Phase::recompute, c_.topology_.rank(), failure, text, [&] {
    losses.reserve(window_.micro_batches_);
    for (Participant* participant : c_.participants_) participant->open();
  });
  for (std::uint32_t micro = 0; micro < window_.micro_batches_; ++micro) {
    c_.enter(Phase::recompute, micro);
    detail::guarded(Phase::recompute, c_.topology_.rank(), failure, text, [&] {
      double loss =
          c_.options_.recompute(window_.positions(micro, group), window_.gradient_scale());
      c_.accumulate(micro, loss, true);
      losses.push_back(loss);
    });
  }
  detail::guarded(Phase::recompute, c_.topology_.rank(), failure, text, [&] {
    for (Participant* participant : c_.participants_) participant->close();
  });
  return losses;
}

/// Of what this rank contributes.
void Coordinator::SuspectWindow::digest(const std::vector<double>& losses, std::uint64_t& out,
                                        std::uint64_t& finite) const
{
  finite = 1;
  for (const double loss : losses) {
    out = mix64(out, std::bit_cast<std::uint64_t>(loss));
    if (!is_finite_loss(loss)) finite = 0;
  }
  for (Participant* participant : c_.participants_) {
    const std::optional<std::uint64_t> nonfinite = participant->digest_contribution(out);
    if (!nonfinite)
      throw InvalidArgument(fmt::format(
          "optimizer {} cannot tell what it contributes (it has no digest_contribution)",
          participant->name()));
    if (*nonfinite != 0) finite = 0;
  }
}

/// Collective.
Recomputation Coordinator::SuspectWindow::agree_on_cause(const Account& own, int suspect, int other,
                                                         std::string text)
{
  c_.wait();
  c_.transport_->gather(std::bit_cast<AccountWords>(own), c_.accounts_);
  const auto of = [&](int rank) {
    AccountWords record;
    std::copy_n(c_.accounts_.begin() + rank * static_cast<std::ptrdiff_t>(record.size()),
                record.size(), record.begin());
    return std::bit_cast<Account>(record);
  };
  Recomputation result;
  result.rank = static_cast<std::uint32_t>(suspect);
  result.other = static_cast<std::uint32_t>(other);
  for (int rank = 0; rank < c_.topology_.size(); ++rank) {
    if (of(rank).failed == 0) continue;
    c_.transport_->share(text, rank);
    try {
      result.failure = fmt::format("rank {}: {}", rank, text);
    } catch (const std::bad_alloc&) {
      result.failure = "out of memory";
    }
    return result;
  }
  // A group came to what its model-parallel ranks came to.
  const int model = c_.topology_.model_parallel();
  Contribution first{0, true}, again{0, true}, elsewhere{0, true};
  result.comparable = true;
  for (int slot = 0; slot < model; ++slot) {
    const Account here = of(suspect / model * model + slot),
                  there = of(other / model * model + slot);
    const auto add = [](Contribution& to, std::uint64_t digest, std::uint64_t finite) {
      to.digest = mix64(to.digest, digest);
      to.finite = to.finite && finite != 0;
    };
    add(first, here.first, here.first_finite);
    add(again, here.again, here.again_finite);
    add(elsewhere, there.again, there.again_finite);
    result.comparable = result.comparable && here.arithmetic == there.arithmetic;
  }
  classify(result, first, again, elsewhere);
  return result;
}

}  // namespace tutti
