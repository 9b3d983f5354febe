// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// ShardedAdam: the arrays of a shard, and which kernel reads and writes which of them in which
// phase. Each function stands in the order in which the coordinator calls it. Arithmetic is in the
// kernels, the way of data between ranks in the exchange, decisions in decide.cpp.
#include "tutti/sharded_adam.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <new>
#include <optional>

#include "all_or_throw.hpp"
#include "sharded_adam_state.hpp"
#include "tutti/digest.hpp"
#include "tutti/incident.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti {
namespace {

ShardArrays allocate_arrays(Device& device, std::size_t bytes, bool with_ema)
{
  ShardArrays arrays;
  arrays.master = DeviceArray(device, bytes);
  arrays.exp_avg = DeviceArray(device, bytes);
  arrays.exp_avg_sq = DeviceArray(device, bytes);
  if (with_ema) arrays.ema = DeviceArray(device, bytes);
  return arrays;
}

void validate(const AdamOptions& o)
{
  const auto refuse = [&](const char* what, double value, const char* range) {
    throw InvalidArgument(
        fmt::format("optimizer {}: {} = {} is refused (not {}); give a value in range", o.name,
                    what, value, range));
  };
  if (!(o.learning_rate >= 0) || !std::isfinite(o.learning_rate))
    refuse("learning rate", o.learning_rate, "finite and >= 0");
  if (!(o.beta1 >= 0 && o.beta1 < 1)) refuse("beta1", o.beta1, "in [0, 1)");
  if (!(o.beta2 >= 0 && o.beta2 < 1)) refuse("beta2", o.beta2, "in [0, 1)");
  const auto epsilon = static_cast<float>(o.epsilon);  // as the update takes it
  if (!(epsilon > 0) || !std::isfinite(epsilon))
    refuse("epsilon", o.epsilon, "finite and > 0 in fp32");
  if (!(o.weight_decay >= 0) || !std::isfinite(o.weight_decay))
    refuse("weight decay", o.weight_decay, "finite and >= 0");
  if (!(o.ema_decay >= 0 && o.ema_decay < 1)) refuse("EMA decay", o.ema_decay, "in [0, 1)");
  if (o.micro_batches == 0) refuse("micro-batches", 0, "at least 1");
}

/// Bytes of this rank's own arrays and contribution; weights, which a node shares, come on top.
std::uint64_t needed_bytes(const Topology& topology, const ShardPlan& plan,
                           const AdamOptions& options)
{
  constexpr std::size_t block_bytes = block_elements * sizeof(float);
  const std::size_t kinds = options.ema_decay > 0 ? 4 : 3;
  const std::size_t copies = options.update == UpdateMode::staged ? 2 : 1;
  const SlotLayout& layout = plan.layout(topology.model_rank());
  return plan.shard(topology.rank()).size() * block_bytes * (kinds * copies + 1) + layout.bytes() +
         (sums_locally(options) ? layout.blocks() * block_bytes : 0);
}

std::optional<std::uint64_t> available_bytes()
{
  std::ifstream meminfo("/proc/meminfo");
  std::uint64_t kib = 0;
  for (std::string key, rest; meminfo >> key >> kib; std::getline(meminfo, rest))
    if (key == "MemAvailable:") return kib * 1024;
  return std::nullopt;
}

/// Collective over the memory domain: why its ranks' arrays together do not fit; empty if they do.
/// Linux would hand the memory out and kill somebody later.
std::string lack_of_memory(const Topology& topology, std::uint64_t needed)
{
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &needed, 1, MPI_UINT64_T, MPI_SUM, topology.domain()),
            "MPI_Allreduce of needed memory");
  const std::optional<std::uint64_t> available = available_bytes();
  if (!available || needed <= *available) return {};
  return fmt::format("{:.1f} GB are needed and {:.1f} GB available for its ranks on this node",
                     static_cast<double>(needed) / 1e9, static_cast<double>(*available) / 1e9);
}

}  // namespace

// --- construction ------------------------------------------------------------------------------

void ShardedAdam::State::allocate()
{
  const std::size_t bytes = blocks() * block_elements * sizeof(float);
  const bool ema = options.ema_decay > 0;
  now = allocate_arrays(device, bytes, ema);
  if (options.update == UpdateMode::staged) staged = allocate_arrays(device, bytes, ema);
  sum = DeviceArray(device, bytes);
  if (summed_locally) micro_gradient = DeviceArray(device, layout.bytes());
  if (summed_locally && device.kind() != DeviceKind::host && !exchange.in_device_memory())
    local_sum = DeviceArray(device, layout.blocks() * block_elements * sizeof(float));
  for (const std::span<std::byte> pages : exchange.kernel_pages()) {
    device.pin(pages.data(), pages.size());
    pinned.push_back(pages.data());
  }

  const auto upload = [&](const auto& table) {
    using Entry = typename std::decay_t<decltype(table)>::value_type;
    DeviceArray array(device, std::max<std::size_t>(1, table.size()) * sizeof(Entry));
    if (!table.empty())
      device.copy(array.template as<void>(), table.data(), table.size() * sizeof(Entry));
    return array;
  };
  sum_table = upload(exchange.sum_blocks());
  source_table = upload(exchange.sources());
  sum_scans.resize(blocks());
  sum_scan = upload(sum_scans);
  adam_scans.resize(blocks());
  adam_scan = upload(adam_scans);
  scalars.resize(parameters.size());
  scalar_table = upload(scalars);
  // Staged updates go to the staged weights, which become the published ones and back: two tables
  // in turn.
  for (int i = 0; i < 2; ++i) {
    const bool published = options.update == UpdateMode::in_place || i == 1;
    const std::vector<void*> weights = exchange.weight_targets(published);
    std::vector<AdamBlock> table(blocks());
    for (std::size_t b = 0; b < blocks(); ++b)
      table[b] = {weights[b], layout.parameter_of(shard[b])};
    targets[i] = upload(table);
  }
  allocate_digests();
  absent.assign(parameters.size(), 0);
  bound.assign(parameters.size(), 0);
  has.assign(parameters.size(), 0);
  dirty.assign(parameters.size(), 0);
}

ShardedAdam::ShardedAdam(const Topology& topology, Device& device, ParameterSet parameters,
                         AdamOptions options)
{
  // One rank's bad arguments, or its lack of memory, are everybody's: the others would wait for it.
  std::optional<ShardPlan> plan;
  detail::all_or_throw<InvalidArgument>(topology.world(), [&] {
    validate(options);
    plan.emplace(parameters, topology.data_parallel(), topology.model_parallel(),
                 options.rank_weights);
  });
  const auto allocating = [&](auto&& work) {
    detail::all_or_throw<DeviceError>(topology.world(), [&] {
      try {
        work();
      } catch (const std::exception& error) {
        const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
        throw DeviceError(
            fmt::format("rank {}: optimizer {} cannot be allocated ({}); use more ranks or nodes, "
                        "smaller rank weights there, or the in-place update",
                        topology.rank(), options.name, memory ? "out of memory" : error.what()));
      }
    });
  };
  const bool on_host = device.kind() == DeviceKind::host;
  const std::string lack =
      lack_of_memory(topology, on_host ? needed_bytes(topology, *plan, options) : 0);
  allocating([&] {
    if (!lack.empty()) throw DeviceError(lack);
  });
  state_ =
      std::make_unique<State>(topology, device, std::move(parameters), *std::move(plan), options);
  try {
    allocating([&] { state_->allocate(); });
  } catch (const DeviceError&) {
    close_buffers();
    throw;
  }
}

ShardedAdam::~ShardedAdam() = default;

void ShardedAdam::close_buffers()
{
  state_->unpin();
  state_->exchange.close();
}

void ShardedAdam::State::unpin() noexcept
{
  for (std::byte* const pages : pinned) device.unpin(pages);
  pinned.clear();
}

const ParameterSet& ShardedAdam::parameter_set() const { return state_->parameters; }
const ShardPlan& ShardedAdam::plan() const { return state_->plan; }
const AdamOptions& ShardedAdam::options() const { return state_->options; }
const Piece& ShardedAdam::piece(std::size_t p) const { return state_->layout.piece(p); }
const std::string& ShardedAdam::name() const { return state_->options.name; }
std::size_t ShardedAdam::parameters() const { return state_->parameters.size(); }
std::string ShardedAdam::parameter_name(std::size_t p) const { return state_->parameters[p].name; }
const std::string& ShardedAdam::exchange_description() const
{
  return state_->exchange.description();
}
std::uint64_t ShardedAdam::plan_hash() const { return state_->plan.hash(); }

Policy::Betas ShardedAdam::betas(std::size_t) const
{
  return {state_->options.beta1, state_->options.beta2};
}

std::uint64_t ShardedAdam::configuration_hash() const
{
  const AdamOptions& o = state_->options;
  std::uint64_t hash = mix64(hash_of(o.name), state_->parameters.hash());
  for (double value : {o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay, o.ema_decay})
    hash = mix64(hash, std::bit_cast<std::uint64_t>(value));
  for (std::uint64_t word : {std::uint64_t{o.decoupled}, static_cast<std::uint64_t>(o.update),
                             std::uint64_t{o.micro_batches}, std::uint64_t{o.fp32_wire},
                             std::uint64_t{o.reduce_scatter}})
    hash = mix64(hash, word);
  return hash;
}

std::size_t ShardedAdam::allocated_bytes() const
{
  const State& s = *state_;
  std::size_t bytes = s.sum.bytes() + s.micro_gradient.bytes();
  for (const ShardArrays* arrays : {&s.now, &s.staged})
    bytes += arrays->master.bytes() + arrays->exp_avg.bytes() + arrays->exp_avg_sq.bytes() +
             arrays->ema.bytes();
  return bytes;
}

void ShardedAdam::initialize(const std::function<std::vector<float>(std::size_t)>& values)
{
  State& s = *state_;
  detail::all_or_throw<InvalidArgument>(s.topology.world(), [&] {
    std::size_t loaded = s.parameters.size();  // none
    std::vector<float> global, block(block_elements), zeros(block_elements);
    const auto load = [&](std::size_t p) {
      const ParameterSpec& spec = s.parameters[p];
      const std::size_t expected = spec.elements();
      std::string reason;
      try {
        global = values(p);
        if (global.size() == expected) return;
        reason = fmt::format("there are {} values for {} elements", global.size(), expected);
      } catch (const std::exception& error) {
        reason = error.what();
      }
      throw InvalidArgument(fmt::format(
          "initial values of {}/{} cannot be had on rank {} ({}); give all ranks the whole "
          "parameter in row-major order",
          s.options.name, spec.name, s.topology.rank(), reason));
    };
    for (std::size_t i = 0; i < s.blocks(); ++i) {
      const std::uint32_t p = s.layout.parameter_of(s.shard[i]);
      const Piece& piece = s.layout.piece(p);
      if (loaded != p) load(p);
      loaded = p;
      const std::size_t begin = (s.shard[i] - piece.first_block) * block_elements;
      const std::size_t end = std::min(piece.elements, begin + block_elements);
      std::fill(block.begin(), block.end(), 0.0f);
      for (std::size_t e = begin; e < end; ++e) block[e - begin] = global[piece.global_index(e)];
      const auto put = [&](const DeviceArray& array, const std::vector<float>& from) {
        if (array.bytes() != 0)
          s.device.copy(array.floats() + i * block_elements, from.data(),
                        block_elements * sizeof(float));
      };
      put(s.now.master, block);
      put(s.now.exp_avg, zeros);
      put(s.now.exp_avg_sq, zeros);
      put(s.now.ema, block);
    }
  });
  restored();
}

void ShardedAdam::restored()
{
  State& s = *state_;
  const bool in_place = s.options.update == UpdateMode::in_place;
  detail::all_or_throw<DeviceError>(s.topology.world(), [&] {
    const std::vector<void*> weights = s.exchange.weight_targets(in_place);
    for (std::size_t i = 0; i < s.blocks(); ++i)
      s.device.convert(weights[i], s.layout.precision_of(s.shard[i]),
                       s.now.master.floats() + i * block_elements, block_elements);
    s.digest_own(in_place ? s.exchange.weights() : s.exchange.staged_weights());
  });
  s.exchange.gather(in_place);
  gather_digests();
  s.exchange.fence();
  check_mpi(MPI_Barrier(s.topology.world()), "MPI_Barrier after the initial weights");
  s.exchange.fence();
  s.publish_digests();
  if (!in_place) {
    s.exchange.publish();
    s.target ^= 1;
  }
}

// --- the window --------------------------------------------------------------------------------

void* ShardedAdam::gradient(std::size_t p) { return state_->gradient(p); }
void ShardedAdam::set_absent(std::size_t p) { state_->absent.at(p) = 1; }

const void* ShardedAdam::weights(std::size_t p) const
{
  const State& s = *state_;
  return s.exchange.weights() + s.layout.byte_offset(s.layout.piece(p).first_block);
}

void ShardedAdam::open()
{
  State& s = *state_;
  std::fill(s.absent.begin(), s.absent.end(), 0);
  std::fill(s.has.begin(), s.has.end(), 0);
  s.own_offender = {};
}

void ShardedAdam::accumulate(std::uint32_t micro)
{
  State& s = *state_;
  if (micro >= s.options.micro_batches)
    throw InvalidArgument(
        fmt::format("optimizer {} cannot take micro-batch {} (it was made for {} a window, counted "
                    "from 0); give AdamOptions::micro_batches as many as the coordinator has",
                    s.options.name, micro, s.options.micro_batches));
  for (std::size_t p = 0; p < s.parameters.size(); ++p) {
    if (s.absent[p]) continue;
    const Piece& piece = s.layout.piece(p);
    if (s.summed_locally && piece.elements != 0) {
      const BlockScan scan = s.device.accumulate(
          s.local_total(p), s.gradient(p), s.parameters[p].precision, piece.elements, !s.has[p]);
      if (scan.nonfinite != 0) {
        Offender offender = s.offender_at(
            Stage::micro_batch, static_cast<std::uint32_t>(piece.first_block), scan.first_nonfinite,
            s.topology.rank(), s.gradient(p), s.parameters[p].precision);
        offender.micro = micro;
        offender.count = scan.nonfinite;
        s.own_offender = std::min(s.own_offender, offender);
      }
      s.watch_sum(p, micro, scan.largest_finite);
    }
    s.has[p] = s.dirty[p] = 1;
  }
  std::fill(s.absent.begin(), s.absent.end(), 0);
}

/// Zeroes a part of this rank's contribution, wherever it lies.
void ShardedAdam::State::clear(std::byte* values, std::size_t bytes) const
{
  static const std::vector<std::byte> zeros(std::size_t{1} << 16);
  for (std::size_t at = 0; at < bytes; at += zeros.size())
    device.copy(values + at, zeros.data(), std::min(zeros.size(), bytes - at));
}

void ShardedAdam::close()
{
  // What this rank has no gradient of counts as zero, not as what the last window left there.
  State& s = *state_;
  for (std::size_t p = 0; p < s.parameters.size(); ++p) {
    if (s.has[p] && s.local_sum.bytes() != 0)
      s.device.copy(s.exchange.contribution() + s.contribution_offset(p), s.local_total(p),
                    s.layout.piece(p).elements * sizeof(float));
    // Without a sum of its own the caller writes there, and may have before it gave up.
    if (s.has[p] || (s.summed_locally && !s.dirty[p])) continue;
    s.clear(s.exchange.contribution() + s.contribution_offset(p),
            s.layout.piece(p).elements * bytes_of(s.wire_precision(p)));
    s.dirty[p] = 0;
  }
}

// --- exchange and scan -------------------------------------------------------------------------

void ShardedAdam::exchange()
{
  state_->exchange.enter();
  state_->exchange.exchange();
}

void ShardedAdam::inspect(Ballot& ballot, std::span<std::uint8_t> has_gradient)
{
  State& s = *state_;
  std::copy(s.has.begin(), s.has.end(), has_gradient.begin());
  ballot.offender = s.own_offender;
  for (std::uint32_t block : s.exchange.unread_blocks()) s.scan_own_contribution(block, ballot);
  if (s.blocks() == 0) return;

  SumBlocks work;
  work.blocks = s.blocks();
  work.block = s.sum_table.as<SumBlock>();
  work.sources = s.source_table.as<const void*>();
  work.sum = s.sum.floats();
  work.scan = s.sum_scan.as<BlockScan>();
  work.stream = s.streams();
  s.device.sum_blocks(work);
  s.device.copy(s.sum_scans.data(), work.scan, s.blocks() * sizeof(BlockScan));
  for (std::size_t i = 0; i < s.blocks(); ++i) {
    const BlockScan& scan = s.sum_scans[i];
    ballot.largest_finite = std::max<std::uint64_t>(ballot.largest_finite, scan.largest_finite);
    if (scan.nonfinite == 0) {
      ballot.sum_of_squares.add(scan.sum_of_squares);
    } else {
      ballot.nonfinite += scan.nonfinite;
      s.locate(i, scan.nonfinite, ballot);
    }
  }
}

// --- stage, gather, confirm --------------------------------------------------------------------

void ShardedAdam::stage(const Update& update)
{
  State& s = *state_;
  const AdamOptions& o = s.options;
  if (update.mode != o.update)
    throw InvalidArgument(fmt::format(
        "optimizer {} cannot make the update ({}); give AdamOptions::update what the policy has",
        o.name,
        o.update == UpdateMode::staged ? "it stages, and the policy is in place"
                                       : "it writes in place, and the policy is staged"));
  const double rate = o.learning_rate * update.learning_rate_factor;
  for (std::size_t p = 0; p < s.parameters.size(); ++p) {
    AdamScalars& k = s.scalars[p];
    const double product1 = update.clocks[p].beta1_product * o.beta1;
    const double product2 = update.clocks[p].beta2_product * o.beta2;
    k.grad_factor = static_cast<float>(update.grad_factor);
    k.beta1 = static_cast<float>(o.beta1);
    k.one_minus_beta1 = static_cast<float>(1 - o.beta1);
    k.beta2 = static_cast<float>(o.beta2);
    k.one_minus_beta2 = static_cast<float>(1 - o.beta2);
    k.l2 = o.decoupled ? 0.0f : static_cast<float>(o.weight_decay);
    k.decay = o.decoupled ? static_cast<float>(1 - rate * o.weight_decay) : 1.0f;
    k.step_size = static_cast<float>(rate / (1 - product1));
    k.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - product2));
    k.epsilon = static_cast<float>(o.epsilon);
    k.ema_decay = static_cast<float>(o.ema_decay);
    k.one_minus_ema_decay = static_cast<float>(1 - o.ema_decay);
    k.weights = s.parameters[p].precision;
    k.keep = update.has_gradient[p] == 0;
  }
  s.grad_factor = update.grad_factor;
  s.clip = update.clip;
  s.staged_update = false;
  if (s.blocks() != 0) {
    s.device.copy(s.scalar_table.as<void>(), s.scalars.data(),
                  s.scalars.size() * sizeof(AdamScalars));
    const bool in_place = o.update == UpdateMode::in_place;
    const ShardArrays& out = in_place ? s.now : s.staged;
    AdamBlocks work;
    work.blocks = s.blocks();
    work.block = s.targets[s.target].as<AdamBlock>();
    work.scalars = s.scalar_table.as<AdamScalars>();
    work.gradient = s.sum.floats();
    work.master = s.now.master.floats();
    work.exp_avg = s.now.exp_avg.floats();
    work.exp_avg_sq = s.now.exp_avg_sq.floats();
    work.ema = s.now.ema.floats();
    work.new_master = out.master.floats();
    work.new_exp_avg = out.exp_avg.floats();
    work.new_exp_avg_sq = out.exp_avg_sq.floats();
    work.new_ema = out.ema.floats();
    work.scan = s.adam_scan.as<AdamScan>();
    work.stream = !in_place && s.streams();
    s.device.adam_blocks(work);
    s.device.copy(s.adam_scans.data(), work.scan, s.blocks() * sizeof(AdamScan));
    if (update.digests) s.digest_own(in_place ? s.exchange.weights() : s.exchange.staged_weights());
  }
  s.staged_update = true;
}

void ShardedAdam::gather()
{
  state_->exchange.gather(state_->options.update == UpdateMode::in_place);
  state_->exchange.fence();
}

void ShardedAdam::confirm(Confirm& confirm)
{
  State& s = *state_;
  if (!s.staged_update)
    throw DeviceError("the update was not staged (an earlier phase failed); see its failure");
  for (std::size_t i = 0; i < s.blocks(); ++i) {
    if (s.adam_scans[i].nonfinite == 0) continue;
    confirm.nonfinite += s.adam_scans[i].nonfinite;
    s.locate_staged(i, confirm);
  }
}

bool ShardedAdam::knows_contributors() const { return !state_->options.reduce_scatter; }

PrecisionNames ShardedAdam::precisions(std::size_t p) const
{
  const std::string model(name_of(state_->parameters[p].precision));
  return {model, model, std::string(name_of(state_->wire_precision(p))), "fp32", "fp32"};
}

void ShardedAdam::publish() noexcept
{
  State& s = *state_;
  std::atomic_thread_fence(
      std::memory_order_seq_cst);  // after the confirm: the owners' stores are there
  s.publish_digests();
  if (s.options.update == UpdateMode::in_place) return;
  std::swap(s.now, s.staged);
  s.exchange.publish();
  s.target ^= 1;
}

void ShardedAdam::discard() noexcept { state_->staged_digests_known = false; }

StateView ShardedAdam::state()
{
  State& s = *state_;
  StateView view{&s.parameters, &s.plan, {}};
  if (s.device.kind() != DeviceKind::host) view.device = &s.device;
  view.arrays = {{"master", s.now.master.floats()},
                 {"exp_avg", s.now.exp_avg.floats()},
                 {"exp_avg_sq", s.now.exp_avg_sq.floats()}};
  if (s.options.ema_decay > 0) view.arrays.push_back({"ema", s.now.ema.floats()});
  return view;
}

}  // namespace tutti
