// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Of a ShardedAdam: which value of a bad window is the first, where it came from, and what only its
// rank can say of it. Nothing here runs while everything is finite, but for the sums' bounds.
#include <algorithm>
#include <bit>
#include <cmath>

#include "sharded_adam_state.hpp"
#include "tutti/digest.hpp"
#include "tutti/incident.hpp"

namespace tutti {

Offender ShardedAdam::State::offender_at(Stage stage, std::uint32_t block, std::size_t index,
                                         int rank, const void* values, Precision precision) const
{
  const std::uint32_t p = layout.parameter_of(block);
  const Piece& piece = layout.piece(p);
  std::uint32_t stored[1] = {};
  const std::size_t width = bytes_of(precision);
  device.copy(stored, static_cast<const std::byte*>(values) + index * width, width);
  Offender offender;
  offender.stage = static_cast<std::uint32_t>(stage);
  offender.micro = ~0u;
  offender.parameter = p;
  offender.element = piece.global_index((block - piece.first_block) * block_elements + index);
  offender.rank = static_cast<std::uint32_t>(rank);
  offender.value_bits = std::bit_cast<std::uint32_t>(load_element(stored, precision, 0));
  return offender;
}

/// Finds the micro-batch with which a sum of finite gradients left fp32. The magnitudes added up
/// bound every partial sum, with room for their roundings, so nearly always there is nothing to do.
void ShardedAdam::State::watch_sum(std::size_t p, std::uint32_t micro, std::uint32_t largest)
{
  constexpr double nearly_overflows = 3.4e38;
  const double added = static_cast<double>(std::bit_cast<float>(largest));
  bound[p] = has[p] ? bound[p] + added : added;
  if (bound[p] < nearly_overflows) return;
  const Piece& piece = layout.piece(p);
  const BlockScan scan = device.scan(local_total(p), Precision::fp32, piece.elements);
  if (scan.nonfinite == 0) return;
  Offender offender =
      offender_at(Stage::accumulation, static_cast<std::uint32_t>(piece.first_block),
                  scan.first_nonfinite, topology.rank(), local_total(p), Precision::fp32);
  offender.micro = micro;
  offender.count = scan.nonfinite;
  own_offender = std::min(own_offender, offender);
}

/// A contribution that no owner reads votes all the same.
void ShardedAdam::State::scan_own_contribution(std::uint32_t block, Ballot& ballot) const
{
  const Precision precision = wire_precision(layout.parameter_of(block));
  const std::byte* values = exchange.contribution() + exchange.contribution_offset(block);
  const BlockScan scan = device.scan(values, precision, block_elements);
  ballot.largest_finite = std::max<std::uint64_t>(ballot.largest_finite, scan.largest_finite);
  if (scan.nonfinite == 0) return;
  ballot.nonfinite += scan.nonfinite;
  Offender offender = offender_at(summed_locally ? Stage::accumulation : Stage::micro_batch, block,
                                  scan.first_nonfinite, topology.rank(), values, precision);
  if (!summed_locally) offender.micro = 0;
  offender.count = scan.nonfinite;
  ballot.offender = std::min(ballot.offender, offender);
}

/// Which contribution made the sum of a block nonfinite, if one did.
void ShardedAdam::State::locate(std::size_t i, std::uint32_t nonfinite, Ballot& ballot) const
{
  const SumBlock& work = exchange.sum_blocks()[i];
  const auto take = [&](Offender offender, std::uint32_t count) {
    offender.count = count;
    ballot.offender = std::min(ballot.offender, offender);
  };
  bool found = false;
  for (std::uint32_t k = work.first_source; k < work.first_source + work.sources; ++k) {
    if (exchange.source_rank()[k] < 0) continue;  // a sum: its parts are scanned where they are
    const void* source = exchange.sources()[k];
    const BlockScan scan = device.scan(source, work.precision, block_elements);
    if (scan.nonfinite == 0) continue;
    found = true;
    // Summed locally, the contributor itself knows the micro-batch; if it saw none, the summing
    // overflowed.
    Offender offender =
        offender_at(summed_locally ? Stage::accumulation : Stage::micro_batch, shard[i],
                    scan.first_nonfinite, exchange.source_rank()[k], source, work.precision);
    if (!summed_locally) offender.micro = 0;
    take(offender, scan.nonfinite);
  }
  if (found) return;
  const std::uint32_t index = sum_scans[i].first_nonfinite;
  take(offender_at(Stage::exchange, shard[i], index, overflowing_rank(work, index),
                   sum.floats() + i * block_elements, Precision::fp32),
       nonfinite);
}

/// The rank with whose finite contribution the sum left fp32; this one where MPI summed.
int ShardedAdam::State::overflowing_rank(const SumBlock& work, std::uint32_t index) const
{
  const std::size_t width = bytes_of(work.precision);
  float sum_so_far = 0;
  for (std::uint32_t k = work.first_source; k < work.first_source + work.sources; ++k) {
    std::uint32_t stored[1] = {};
    device.copy(stored, static_cast<const std::byte*>(exchange.sources()[k]) + index * width,
                width);
    sum_so_far += load_element(stored, work.precision, 0);
    if (!std::isfinite(sum_so_far) && exchange.source_rank()[k] >= 0)
      return exchange.source_rank()[k];
  }
  return topology.rank();
}

/// The state array whose block i of the shard is nonfinite; nothing if none is.
const float* ShardedAdam::State::bad_state(std::size_t i) const
{
  for (const DeviceArray* array : {&now.master, &now.exp_avg, &now.exp_avg_sq, &now.ema}) {
    if (array->bytes() == 0) continue;
    const float* block = array->floats() + i * block_elements;
    if (device.scan(block, Precision::fp32, block_elements).nonfinite != 0) return block;
  }
  return nullptr;
}

/// Where the first bad value of staged block i of the shard is, and what made it bad.
void ShardedAdam::State::locate_staged(std::size_t i, Confirm& confirm) const
{
  const bool in_place = options.update == UpdateMode::in_place;
  const ShardArrays& out = in_place ? now : staged;
  const AdamScan& scan = adam_scans[i];
  const std::size_t at = i * block_elements;
  // Was it bad before? In place the old values are gone.
  if (const float* old = in_place ? nullptr : bad_state(i); old != nullptr) {
    const BlockScan bad = device.scan(old, Precision::fp32, block_elements);
    confirm.nonfinite_state += scan.nonfinite;
    Offender offender = offender_at(Stage::state, shard[i], bad.first_nonfinite, topology.rank(),
                                    old, Precision::fp32);
    offender.count = bad.nonfinite;
    confirm.offender = std::min(confirm.offender, offender);
    return;
  }
  const float* values = nullptr;
  switch (scan.array) {
    case AdamArray::unscaled_gradient:
      values = sum.floats();
      break;
    case AdamArray::exp_avg:
      values = out.exp_avg.floats();
      break;
    case AdamArray::exp_avg_sq:
      values = out.exp_avg_sq.floats();
      break;
    case AdamArray::master:
    case AdamArray::weights:
      values = out.master.floats();
      break;
    case AdamArray::ema:
      values = out.ema.floats();
      break;
  }
  Offender offender = offender_at(stage_of(scan, at), shard[i], scan.first, topology.rank(),
                                  values + at, Precision::fp32);
  if (scan.array == AdamArray::weights) {  // finite in the master weights, and not in the model's
    std::uint32_t stored[1] = {};
    const Precision precision = layout.precision_of(shard[i]);
    store_element(stored, precision, 0, std::bit_cast<float>(offender.value_bits));
    offender.value_bits = std::bit_cast<std::uint32_t>(load_element(stored, precision, 0));
  } else if (scan.array == AdamArray::unscaled_gradient) {  // what is held is the scaled one
    offender.value_bits = std::bit_cast<std::uint32_t>(static_cast<float>(grad_factor) *
                                                       std::bit_cast<float>(offender.value_bits));
  }
  offender.count = scan.nonfinite;
  confirm.offender = std::min(confirm.offender, offender);
}

/// Where the first bad value of the staged block at element `at` of the shard came from.
Stage ShardedAdam::State::stage_of(const AdamScan& scan, std::size_t at) const
{
  if (scan.array != AdamArray::unscaled_gradient) return Stage::update;
  const auto with = [&](double factor) {
    return std::isfinite(static_cast<float>(factor) * summed_gradient(at + scan.first));
  };
  if (with(grad_factor)) return Stage::update;  // it was the weight decay
  return with(grad_factor / clip) ? Stage::clip : Stage::unscale;
}

float ShardedAdam::State::contributed(std::size_t p, std::size_t element) const
{
  const Precision wire = wire_precision(p);
  std::uint32_t stored[1] = {};
  device.copy(stored, exchange.contribution() + contribution_offset(p) + element * bytes_of(wire),
              bytes_of(wire));
  return load_element(stored, wire, 0);
}

float ShardedAdam::State::summed_gradient(std::size_t element) const
{
  float value = 0;
  device.copy(&value, sum.floats() + element, sizeof value);
  return value;
}

OffenderDetail ShardedAdam::detail(const Offender& offender)
{
  const State& s = *state_;
  OffenderDetail detail;
  if (offender.parameter >= s.parameters.size()) return detail;
  const std::size_t p = offender.parameter;
  const Piece& piece = s.layout.piece(p);
  const std::size_t local = piece.local_index(offender.element);
  if (local == piece.elements) return detail;
  const Precision wire = s.wire_precision(p);
  const std::byte* const contribution = s.exchange.contribution() + s.contribution_offset(p);
  const auto stage = static_cast<Stage>(offender.stage);
  switch (stage) {
    case Stage::loss:
      break;
    case Stage::micro_batch:
    case Stage::accumulation:
      detail.array = stage == Stage::accumulation ? "sum of micro-batches" : "gradient";
      detail.count = stage == Stage::micro_batch && s.summed_locally
                         ? offender.count
                         : s.device.scan(contribution, wire, piece.elements).nonfinite;
      break;
    case Stage::exchange: {
      detail.array = "sum over ranks";
      detail.count = offender.count;
      const auto own = static_cast<double>(s.contributed(p, local));
      if (knows_contributors() && std::isfinite(own)) detail.gradient_magnitude = std::abs(own);
      break;
    }
    case Stage::unscale:
    case Stage::clip:
    case Stage::update:
    case Stage::state: {
      const auto block = static_cast<std::uint32_t>(piece.first_block + local / block_elements);
      const auto found = std::lower_bound(s.shard.begin(), s.shard.end(), block);
      if (found == s.shard.end() || *found != block) break;
      const auto i = static_cast<std::size_t>(found - s.shard.begin());
      const auto gradient =
          static_cast<double>(s.summed_gradient(i * block_elements + local % block_elements));
      if (std::isfinite(gradient)) detail.gradient_magnitude = std::abs(gradient);
      for (std::size_t b = 0; b < s.blocks(); ++b)
        if (s.layout.parameter_of(s.shard[b]) == p) detail.count += s.adam_scans[b].nonfinite;
      if (stage != Stage::state) {
        static constexpr const char* arrays[] = {
            "unscaled gradient", "exp_avg", "exp_avg_sq", "master", "weights", "ema"};
        detail.array = arrays[static_cast<std::size_t>(s.adam_scans[i].array)];
        break;
      }
      detail.count = offender.count;
      const float* const bad = s.bad_state(i);
      detail.array = bad == s.now.master.floats() + i * block_elements       ? "master"
                     : bad == s.now.exp_avg.floats() + i * block_elements    ? "exp_avg"
                     : bad == s.now.exp_avg_sq.floats() + i * block_elements ? "exp_avg_sq"
                                                                             : "ema";
      break;
    }
  }
  return detail;
}

std::optional<std::uint64_t> ShardedAdam::digest_contribution(std::uint64_t& digest)
{
  const State& s = *state_;
  std::uint64_t nonfinite = 0;
  std::vector<std::uint64_t> found;
  for (std::size_t p = 0; p < s.parameters.size(); ++p) {
    digest = mix64(digest, s.has[p]);
    const Piece& piece = s.layout.piece(p);
    if (!s.has[p] || piece.elements == 0) continue;
    const std::byte* const values = s.exchange.contribution() + s.contribution_offset(p);
    const Precision wire = s.wire_precision(p);
    found.resize(piece.blocks);
    s.digest(found.data(), values, wire, piece.blocks);
    for (const std::uint64_t block : found) digest = mix64(digest, block);
    nonfinite += s.device.scan(values, wire, piece.elements).nonfinite;
  }
  return nonfinite;
}

}  // namespace tutti
