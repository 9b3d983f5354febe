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
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <optional>

#include "agree.hpp"
#include "tutti/digest.hpp"
#include "tutti/half.hpp"
#include "tutti/incident.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti {
namespace {

/// Shards up to this many bytes of state stay in cache: plain stores are better for them.
constexpr std::size_t cache_bytes = std::size_t{8} << 20;

/// Memory of a device.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, std::size_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes)
  {
  }
  DeviceArray(DeviceArray&& other) noexcept { swap(*this, other); }
  DeviceArray& operator=(DeviceArray other) noexcept
  {
    swap(*this, other);
    return *this;
  }
  ~DeviceArray()
  {
    if (data_) device_->deallocate(data_);
  }
  float* floats() const { return static_cast<float*>(data_); }
  template <class T>
  T* as() const
  {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }
  friend void swap(DeviceArray& a, DeviceArray& b) noexcept
  {
    std::swap(a.device_, b.device_);
    std::swap(a.data_, b.data_);
    std::swap(a.bytes_, b.bytes_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The state of the shard: one array a kind, block after block.
struct ShardArrays {
  DeviceArray master, exp_avg, exp_avg_sq, ema;
};

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
  if (!(o.epsilon > 0) || !std::isfinite(o.epsilon)) refuse("epsilon", o.epsilon, "finite and > 0");
  if (!(o.weight_decay >= 0) || !std::isfinite(o.weight_decay))
    refuse("weight decay", o.weight_decay, "finite and >= 0");
  if (!(o.ema_decay >= 0 && o.ema_decay < 1)) refuse("EMA decay", o.ema_decay, "in [0, 1)");
  if (o.micro_batches == 0) refuse("micro-batches", 0, "at least 1");
}

/// Micro-batches are added up in fp32 before they travel; otherwise gradients are handed in where
/// they leave from.
bool sums_locally(const AdamOptions& options)
{
  return options.micro_batches > 1 || options.fp32_wire || options.reduce_scatter;
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

struct ShardedAdam::State {
  State(const Topology& t, Device& d, ParameterSet set, AdamOptions o)
      : topology(t),
        device(d),
        parameters(std::move(set)),
        options(std::move(o)),
        summed_locally(sums_locally(options)),
        plan(parameters, t.data_parallel(), t.model_parallel(), options.rank_weights),
        layout(plan.layout(t.model_rank())),
        shard(plan.shard(t.rank())),
        exchange(t, plan, exchange_options())
  {
  }

  ExchangeOptions exchange_options() const
  {
    ExchangeOptions o;
    o.fp32_wire = summed_locally;
    o.device = &device;
    o.transport = options.nccl ? ExchangeOptions::Transport::nccl : ExchangeOptions::Transport::mpi;
    o.method = options.reduce_scatter ? ExchangeOptions::Method::reduce_scatter
                                      : ExchangeOptions::Method::ordered;
    return o;
  }

  const Topology& topology;
  Device& device;
  const ParameterSet parameters;
  const AdamOptions options;
  const bool summed_locally;
  const ShardPlan plan;
  const SlotLayout& layout;
  const std::vector<std::uint32_t>& shard;
  Exchange exchange;

  ShardArrays now, staged;     ///< staged: empty when updating in place
  DeviceArray sum;             ///< the summed gradients of the shard
  DeviceArray micro_gradient;  ///< where gradients are handed in when summed locally
  /// Their sum, on a device other than the host: contributions lie in host memory, which is far
  /// from it, so they go there once a window and not once a micro-batch.
  DeviceArray local_sum;
  std::vector<std::byte*> pinned;
  DeviceArray sum_table, source_table, sum_scan, adam_scan, scalar_table;
  DeviceArray digest_table;
  DeviceArray targets[2];  ///< AdamBlock tables: weights go to one buffer or the other
  int target = 0;
  std::vector<BlockScan> sum_scans;
  std::vector<AdamScan> adam_scans;
  std::vector<AdamScalars> scalars;

  // The window, per parameter.
  std::vector<std::uint8_t> absent, has, dirty;
  std::vector<double> bound;         ///< of any partial sum of the micro-batches' gradients
  Offender own_offender;             ///< the first nonfinite value of this rank's own micro-batches
  double grad_factor = 1, clip = 1;  ///< of the staged update
  bool staged_update = false;

  /// Digests of the blocks of this slot's weights as their owners wrote them; `digests` is of the
  /// published weights. Known only where they were asked for.
  std::vector<std::uint64_t> digests, staged_digests;
  bool digests_known = false, staged_digests_known = false;
  std::vector<std::uint64_t> own_digests, slot_digests, replicated_digests;  ///< of a gather

  std::size_t blocks() const { return shard.size(); }
  /// Arrays too large for the cache are written past it.
  bool streams() const { return blocks() * block_elements * 7 * sizeof(float) > cache_bytes; }
  std::size_t contribution_offset(std::size_t p) const
  {
    return exchange.contribution_offset(layout.piece(p).first_block);
  }
  float* local_total(std::size_t p) const
  {
    return reinterpret_cast<float*>(
        (local_sum.bytes() != 0 ? local_sum.as<std::byte>() : exchange.contribution()) +
        contribution_offset(p));
  }
  std::byte* gradient(std::size_t p) const
  {
    return summed_locally
               ? micro_gradient.as<std::byte>() + layout.byte_offset(layout.piece(p).first_block)
               : exchange.contribution() + contribution_offset(p);
  }
  Precision wire_precision(std::size_t p) const
  {
    return summed_locally ? Precision::fp32 : parameters[p].precision;
  }

  void allocate();
  void unpin() noexcept;
  void clear(std::byte* values, std::size_t bytes) const;
  float contributed(std::size_t p, std::size_t element) const;
  void scan_own_contribution(std::uint32_t block, Ballot& ballot) const;
  std::size_t run_of(std::size_t shard_block) const;
  void digest(std::uint64_t* out, const std::byte* values, Precision precision,
              std::size_t blocks) const;
  void digest_own(const std::byte* weights);
  void publish_digests() noexcept;
  void watch_sum(std::size_t p, std::uint32_t micro, std::uint32_t largest);
  void locate(std::size_t shard_block, std::uint32_t nonfinite, Ballot& ballot) const;
  int overflowing_rank(const SumBlock& work, std::uint32_t index) const;
  Offender offender_at(Stage stage, std::uint32_t block, std::size_t index, int rank,
                       const void* values, Precision precision) const;
  const float* bad_state(std::size_t i) const;
  float summed_gradient(std::size_t element) const;
  Stage stage_of(const AdamScan& scan, std::size_t at) const;
  std::size_t held_parameter(const std::string& name) const;
};

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
  digest_table = DeviceArray(device, std::max<std::size_t>(1, layout.blocks()) * 8);
  digests.resize(layout.blocks());
  staged_digests.resize(layout.blocks());
  own_digests.resize(blocks());
  slot_digests.resize(layout.blocks());
  replicated_digests.resize(layout.blocks());
  absent.assign(parameters.size(), 0);
  bound.assign(parameters.size(), 0);
  has.assign(parameters.size(), 0);
  dirty.assign(parameters.size(), 0);
}

ShardedAdam::ShardedAdam(const Topology& topology, Device& device, ParameterSet parameters,
                         AdamOptions options)
{
  // One rank's bad arguments, or its lack of memory, are everybody's: the others would wait for it.
  std::string refusal;
  std::uint64_t needed = 0;
  try {
    validate(options);
    const ShardPlan plan(parameters, topology.data_parallel(), topology.model_parallel(),
                         options.rank_weights);
    needed = needed_bytes(topology, plan, options);
  } catch (const InvalidArgument& error) {
    refusal = error.what();
  }
  refusal = detail::first_text(topology.world(), refusal);
  if (!refusal.empty()) throw InvalidArgument(refusal);

  const auto refuse_lack = [&](const std::string& lack) {
    const std::string text = detail::first_text(
        topology.world(),
        lack.empty() ? lack
                     : fmt::format("rank {}: optimizer {} cannot be allocated ({}); use more ranks "
                                   "or nodes, smaller rank weights there, or the in-place update",
                                   topology.rank(), options.name, lack));
    if (text.empty()) return;
    if (state_) {
      state_->unpin();
      state_->exchange.close();
    }
    throw DeviceError(text);
  };
  refuse_lack(lack_of_memory(topology, device.kind() == DeviceKind::host ? needed : 0));
  state_ = std::make_unique<State>(topology, device, std::move(parameters), options);
  std::string lack;
  try {
    state_->allocate();
  } catch (const std::bad_alloc&) {
    lack = "out of memory";
  } catch (const Error& error) {
    lack = error.what();
  }
  refuse_lack(lack);
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
  std::size_t loaded = s.parameters.size();  // none
  std::vector<float> global, block(block_elements);
  for (std::size_t i = 0; i < s.blocks(); ++i) {
    const std::uint32_t p = s.layout.parameter_of(s.shard[i]);
    const Piece& piece = s.layout.piece(p);
    if (loaded != p) {
      global = values(p);
      loaded = p;
    }
    const std::size_t begin = (s.shard[i] - piece.first_block) * block_elements;
    const std::size_t end = std::min(piece.elements, begin + block_elements);
    std::fill(block.begin(), block.end(), 0.0f);
    for (std::size_t e = begin; e < end; ++e) block[e - begin] = global.at(piece.global_index(e));
    const std::size_t bytes = block_elements * sizeof(float);
    s.device.copy(s.now.master.floats() + i * block_elements, block.data(), bytes);
    if (s.now.ema.bytes() != 0)
      s.device.copy(s.now.ema.floats() + i * block_elements, block.data(), bytes);
  }
  restored();
}

void ShardedAdam::restored()
{
  State& s = *state_;
  const bool in_place = s.options.update == UpdateMode::in_place;
  const std::vector<void*> weights = s.exchange.weight_targets(in_place);
  for (std::size_t i = 0; i < s.blocks(); ++i)
    s.device.convert(weights[i], s.layout.precision_of(s.shard[i]),
                     s.now.master.floats() + i * block_elements, block_elements);
  s.exchange.gather(in_place);
  s.digest_own(in_place ? s.exchange.weights() : s.exchange.staged_weights());
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

void ShardedAdam::accumulate(std::uint32_t micro)
{
  State& s = *state_;
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
    if (s.has[p] || !s.dirty[p]) continue;
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

// --- digests of replicas -----------------------------------------------------------------------

/// Of consecutive blocks.
void ShardedAdam::State::digest(std::uint64_t* out, const std::byte* values, Precision precision,
                                std::size_t blocks) const
{
  device.digest_blocks(digest_table.as<std::uint64_t>(), values, precision, blocks);
  device.copy(out, digest_table.as<void>(), blocks * sizeof *out);
}

/// How many blocks from block i of the shard on are consecutive, and of one parameter.
std::size_t ShardedAdam::State::run_of(std::size_t i) const
{
  std::size_t n = 1;
  while (i + n < blocks() && shard[i + n] == shard[i] + n &&
         layout.parameter_of(shard[i + n]) == layout.parameter_of(shard[i]))
    ++n;
  return n;
}

void ShardedAdam::State::digest_own(const std::byte* weights)
{
  for (std::size_t i = 0; i < blocks();) {
    const std::size_t n = run_of(i);
    digest(own_digests.data() + i, weights + layout.byte_offset(shard[i]),
           layout.precision_of(shard[i]), n);
    i += n;
  }
}

void ShardedAdam::gather_digests()
{
  State& s = *state_;
  const int slots = s.plan.model_parallel();
  std::vector<int> counts, begins;
  int total = 0;
  for (int d = 0; d < s.plan.data_parallel(); ++d) {
    counts.push_back(static_cast<int>(s.plan.shard(d * slots + s.topology.model_rank()).size()));
    begins.push_back(total);
    total += counts.back();
  }
  check_mpi(MPI_Allgatherv(s.own_digests.data(), static_cast<int>(s.blocks()), MPI_UINT64_T,
                           s.slot_digests.data(), counts.data(), begins.data(), MPI_UINT64_T,
                           s.topology.data_axis()),
            "MPI_Allgatherv of digests");
  std::fill(s.staged_digests.begin(), s.staged_digests.end(), 0);
  for (int d = 0; d < s.plan.data_parallel(); ++d) {
    const auto& shard = s.plan.shard(d * slots + s.topology.model_rank());
    for (std::size_t i = 0; i < shard.size(); ++i)
      s.staged_digests[shard[i]] = s.slot_digests[static_cast<std::size_t>(begins[d]) + i];
  }
  s.staged_digests_known = true;
  if (slots == 1) return;
  // Of a replicated parameter each slot owns some blocks, the others' are zero here.
  std::size_t n = 0;
  for (std::size_t b = 0; b < s.layout.blocks(); ++b)
    if (s.plan.placement(s.layout.parameter_of(b)) == Placement::replicated)
      s.replicated_digests[n++] = s.staged_digests[b];
  if (n == 0) return;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, s.replicated_digests.data(), static_cast<int>(n),
                          MPI_UINT64_T, MPI_BOR, s.topology.model_axis()),
            "MPI_Allreduce of digests");
  n = 0;
  for (std::size_t b = 0; b < s.layout.blocks(); ++b)
    if (s.plan.placement(s.layout.parameter_of(b)) == Placement::replicated)
      s.staged_digests[b] = s.replicated_digests[n++];
}

void ShardedAdam::State::publish_digests() noexcept
{
  digests.swap(staged_digests);
  digests_known = staged_digests_known;
  staged_digests_known = false;
}

void ShardedAdam::inspect_replicas(Ballot& ballot)
{
  State& s = *state_;
  if (!s.digests_known) return;
  // The ranks that read one copy share the work.
  const std::vector<int>& sharers = s.exchange.sharers();
  const auto part = static_cast<std::size_t>(
      std::lower_bound(sharers.begin(), sharers.end(), s.topology.rank()) - sharers.begin());
  const std::size_t begin = s.layout.blocks() * part / sharers.size(),
                    end = s.layout.blocks() * (part + 1) / sharers.size();
  std::vector<std::uint64_t> found(end - begin);
  for (std::size_t b = begin; b < end;) {
    const Piece& piece = s.layout.piece(s.layout.parameter_of(b));
    const std::size_t n = std::min(end, piece.first_block + piece.blocks) - b;
    s.digest(found.data() + (b - begin), s.exchange.weights() + s.layout.byte_offset(b),
             s.layout.precision_of(b), n);
    b += n;
  }
  for (std::size_t b = begin; b < end; ++b) {
    if (found[b - begin] == s.digests[b]) continue;
    const std::uint32_t p = s.layout.parameter_of(b);
    const Piece& piece = s.layout.piece(p);
    ReplicaFault fault;
    fault.participant = 0;
    fault.parameter = p;
    fault.block = b - piece.first_block;
    fault.element = piece.global_index(fault.block * block_elements);
    fault.rank = static_cast<std::uint64_t>(sharers.front());
    ++ballot.replica_faults;
    ballot.replica = std::min(ballot.replica, fault);
  }
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
  const bool in_place = s.options.update == UpdateMode::in_place;
  const ShardArrays& out = in_place ? s.now : s.staged;
  for (std::size_t i = 0; i < s.blocks(); ++i) {
    const AdamScan& scan = s.adam_scans[i];
    if (scan.nonfinite == 0) continue;
    confirm.nonfinite += scan.nonfinite;
    const std::size_t at = i * block_elements;
    // Was it bad before? In place the old values are gone.
    if (const float* old = in_place ? nullptr : s.bad_state(i); old != nullptr) {
      const BlockScan bad = s.device.scan(old, Precision::fp32, block_elements);
      confirm.nonfinite_state += scan.nonfinite;
      Offender offender = s.offender_at(Stage::state, s.shard[i], bad.first_nonfinite,
                                        s.topology.rank(), old, Precision::fp32);
      offender.count = bad.nonfinite;
      confirm.offender = std::min(confirm.offender, offender);
      continue;
    }
    const float* values = nullptr;
    switch (scan.array) {
      case AdamArray::unscaled_gradient:
        values = s.sum.floats();
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
    Offender offender = s.offender_at(s.stage_of(scan, at), s.shard[i], scan.first,
                                      s.topology.rank(), values + at, Precision::fp32);
    if (scan.array == AdamArray::weights) {  // finite in the master weights, and not in the model's
      std::uint32_t stored[1] = {};
      const Precision precision = s.layout.precision_of(s.shard[i]);
      store_element(stored, precision, 0, std::bit_cast<float>(offender.value_bits));
      offender.value_bits = std::bit_cast<std::uint32_t>(load_element(stored, precision, 0));
    } else if (scan.array == AdamArray::unscaled_gradient) {  // what is held is the scaled one
      offender.value_bits = std::bit_cast<std::uint32_t>(static_cast<float>(s.grad_factor) *
                                                         std::bit_cast<float>(offender.value_bits));
    }
    offender.count = scan.nonfinite;
    confirm.offender = std::min(confirm.offender, offender);
  }
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

bool ShardedAdam::knows_contributors() const { return !state_->options.reduce_scatter; }

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

// --- planned faults ----------------------------------------------------------------------------

std::size_t ShardedAdam::State::held_parameter(const std::string& name) const
{
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (layout.piece(p).elements != 0 && (name == "*" || parameters[p].name == name)) return p;
  return parameters.size();
}

bool ShardedAdam::inject_gradient(const std::string& name, std::uint64_t element, float value)
{
  State& s = *state_;
  const std::size_t p = s.held_parameter(name);
  if (p == s.parameters.size()) return false;
  const Precision precision = s.parameters[p].precision;
  std::uint32_t stored[1] = {};
  store_element(stored, precision, 0, value);
  s.device.copy(s.gradient(p) + element % s.layout.piece(p).elements * bytes_of(precision), stored,
                bytes_of(precision));
  return true;
}

bool ShardedAdam::inject_overflow()
{
  State& s = *state_;
  if (s.blocks() == 0) return false;
  const float huge = std::numeric_limits<float>::max();
  s.device.copy(s.sum.floats(), &huge, sizeof huge);
  return true;
}

bool ShardedAdam::inject_state(const std::string& name, std::uint64_t element, float value)
{
  State& s = *state_;
  const auto owned = [&](std::size_t i, std::size_t p) -> std::size_t {
    if (s.layout.parameter_of(s.shard[i]) != p) return 0;
    const Piece& piece = s.layout.piece(p);
    return std::min(block_elements,
                    piece.elements - (s.shard[i] - piece.first_block) * block_elements);
  };
  for (std::size_t p = 0; p < s.parameters.size(); ++p) {
    if (name != "*" && s.parameters[p].name != name) continue;
    std::size_t elements = 0;
    for (std::size_t i = 0; i < s.blocks(); ++i) elements += owned(i, p);
    if (elements == 0) continue;
    std::size_t left = element % elements, i = 0;
    for (; left >= owned(i, p); ++i) left -= owned(i, p);
    s.device.copy(s.now.exp_avg.floats() + i * block_elements + left, &value, sizeof value);
    return true;
  }
  return false;
}

bool ShardedAdam::inject_bitflip(const std::string& name, std::uint64_t element, unsigned bit)
{
  State& s = *state_;
  const std::size_t p = s.held_parameter(name);
  if (p == s.parameters.size()) return false;
  const std::size_t width = bytes_of(s.parameters[p].precision);
  auto* values = static_cast<std::byte*>(const_cast<void*>(weights(p)));
  std::byte* const target = values + element % s.layout.piece(p).elements * width + bit / 8 % width;
  std::byte value{};
  s.device.copy(&value, target, 1);
  value ^= std::byte{1} << bit % 8;
  s.device.copy(target, &value, 1);
  return true;
}

}  // namespace tutti
