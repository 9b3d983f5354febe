// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a ShardedAdam holds: the arrays of its shard, where gradients are handed in and summed, the
// tables that its kernels read, and what is known of the open window.
#pragma once

#include <utility>

#include "tutti/half.hpp"
#include "tutti/sharded_adam.hpp"

namespace tutti {

/// Shards up to this many bytes of state stay in cache: plain stores are better for them.
inline constexpr std::size_t cache_bytes = std::size_t{8} << 20;

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

/// Micro-batches are added up in fp32 before they travel; otherwise gradients are handed in where
/// they leave from.
inline bool sums_locally(const AdamOptions& options)
{
  return options.micro_batches > 1 || options.fp32_wire || options.reduce_scatter;
}

struct ShardedAdam::State {
  /// `p` is the plan for `set`.
  State(const Topology& t, Device& d, ParameterSet set, ShardPlan p, AdamOptions o)
      : topology(t),
        device(d),
        parameters(std::move(set)),
        options(std::move(o)),
        summed_locally(sums_locally(options)),
        plan(std::move(p)),
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
  std::vector<int> digest_counts, digest_begins;  ///< of each data-parallel rank in a gather
  std::vector<std::uint64_t> found_digests;  ///< of the part of the replica that is checked here

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

  // sharded_adam_offenders.cpp: which value is bad, and whose.
  Offender offender_at(Stage stage, std::uint32_t block, std::size_t index, int rank,
                       const void* values, Precision precision) const;
  void watch_sum(std::size_t p, std::uint32_t micro, std::uint32_t largest);
  void scan_own_contribution(std::uint32_t block, Ballot& ballot) const;
  void locate(std::size_t shard_block, std::uint32_t nonfinite, Ballot& ballot) const;
  int overflowing_rank(const SumBlock& work, std::uint32_t index) const;
  const float* bad_state(std::size_t shard_block) const;
  void locate_staged(std::size_t shard_block, Confirm& confirm) const;
  Stage stage_of(const AdamScan& scan, std::size_t at) const;
  float contributed(std::size_t p, std::size_t element) const;
  float summed_gradient(std::size_t element) const;

  // sharded_adam_replicas.cpp: digests of the weights.
  void digest(std::uint64_t* out, const std::byte* values, Precision precision,
              std::size_t blocks) const;
  std::size_t run_of(std::size_t shard_block) const;
  void digest_own(const std::byte* weights);
  void allocate_digests();
  void publish_digests() noexcept;

  // sharded_adam_faults.cpp
  std::size_t held_parameter(const std::string& name) const;
};

}  // namespace tutti
