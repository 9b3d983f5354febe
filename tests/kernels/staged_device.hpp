// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A device with memory of its own, called as one is that works on the host's: arrays are copied to
// it before each kernel and back after it. So one test of kernels serves all devices.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/device.hpp"

namespace tutti {

class StagedDevice final : public Device {
 public:
  explicit StagedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  DeviceKind kind() const override { return DeviceKind::host; }
  std::string name() const override { return device_->name() + ", staged"; }
  void* allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void deallocate(void* pointer) noexcept override { host_->deallocate(pointer); }
  void copy(void* to, const void* from, std::size_t bytes) override
  {
    host_->copy(to, from, bytes);
  }

  BlockScan accumulate(float* sum, const void* gradient, Precision precision, std::size_t elements,
                       bool first) override
  {
    Staging staging(*device_);
    float* const there = staging.both(sum, elements);
    const void* const from = staging.in(gradient, elements * bytes_of(precision));
    return device_->accumulate(there, from, precision, elements, first);
  }
  BlockScan scan(const void* values, Precision precision, std::size_t elements) override
  {
    Staging staging(*device_);
    return device_->scan(staging.in(values, elements * bytes_of(precision)), precision, elements);
  }
  void sum_blocks(const SumBlocks& work) override
  {
    Staging staging(*device_);
    SumBlocks there = work;
    std::size_t count = 0;
    for (std::size_t b = 0; b < work.blocks; ++b)
      count = std::max<std::size_t>(count, work.block[b].first_source + work.block[b].sources);
    std::vector<const void*> sources(count, nullptr);
    for (std::size_t b = 0; b < work.blocks; ++b)
      for (std::uint32_t s = 0; s < work.block[b].sources; ++s) {
        const std::size_t k = work.block[b].first_source + s;
        sources[k] =
            staging.in(work.sources[k], block_elements * bytes_of(work.block[b].precision));
      }
    there.block = staging.in_array(work.block, work.blocks);
    there.sources = staging.in_array(sources.data(), sources.size());
    there.sum = staging.both(work.sum, work.blocks * block_elements);
    there.scan = staging.both(work.scan, work.blocks);
    device_->sum_blocks(there);
  }
  void adam_blocks(const AdamBlocks& work) override
  {
    Staging staging(*device_);
    const std::size_t n = work.blocks * block_elements;
    AdamBlocks there = work;
    std::uint32_t scalars = 0;
    std::vector<AdamBlock> table(work.block, work.block + work.blocks);
    for (AdamBlock& entry : table) {
      scalars = std::max(scalars, entry.scalars + 1);
      entry.weights = staging.both(static_cast<std::byte*>(entry.weights),
                                   block_elements * bytes_of(work.scalars[entry.scalars].weights));
    }
    there.block = staging.in_array(table.data(), table.size());
    there.scalars = staging.in_array(work.scalars, scalars);
    there.gradient = staging.in_array(work.gradient, n);
    // In place, old and new are one array there too.
    const auto pair = [&](const float* old, float* next, const float*& old_there,
                          float*& next_there) {
      if (next == nullptr) return;
      next_there = staging.both(next, n);
      old_there = old == next ? next_there : staging.in_array(old, n);
    };
    pair(work.master, work.new_master, there.master, there.new_master);
    pair(work.exp_avg, work.new_exp_avg, there.exp_avg, there.new_exp_avg);
    pair(work.exp_avg_sq, work.new_exp_avg_sq, there.exp_avg_sq, there.new_exp_avg_sq);
    pair(work.ema, work.new_ema, there.ema, there.new_ema);
    there.scan = staging.both(work.scan, work.blocks);
    device_->adam_blocks(there);
  }
  void convert(void* to, Precision precision, const float* values, std::size_t elements) override
  {
    Staging staging(*device_);
    std::byte* const there =
        staging.both(static_cast<std::byte*>(to), elements * bytes_of(precision));
    device_->convert(there, precision, staging.in_array(values, elements), elements);
  }
  void digest_blocks(std::uint64_t* digest, const void* values, Precision precision,
                     std::size_t blocks) override
  {
    Staging staging(*device_);
    std::uint64_t* const there = staging.both(digest, blocks);
    device_->digest_blocks(there, staging.in(values, blocks * block_elements * bytes_of(precision)),
                           precision, blocks);
  }

 private:
  /// The arrays of one call; what is written comes back when it ends.
  class Staging {
   public:
    explicit Staging(Device& device) : device_(device) {}
    Staging(const Staging&) = delete;
    ~Staging()
    {
      for (const Array& array : arrays_) {
        if (array.host != nullptr) device_.copy(array.host, array.there, array.bytes);
        device_.deallocate(array.there);
      }
    }
    void* in(const void* host, std::size_t bytes)
    {
      void* const there = device_.allocate(std::max<std::size_t>(bytes, 1));
      arrays_.push_back({nullptr, there, bytes});
      if (bytes != 0) device_.copy(there, host, bytes);
      return there;
    }
    template <class T>
    T* in_array(const T* host, std::size_t count)
    {
      return static_cast<T*>(in(host, count * sizeof(T)));
    }
    template <class T>
    T* both(T* host, std::size_t count)
    {
      T* const there = in_array(host, count);
      arrays_.back().host = host;
      return there;
    }

   private:
    struct Array {
      void* host;
      void* there;
      std::size_t bytes;
    };
    Device& device_;
    std::vector<Array> arrays_;
  };

  std::unique_ptr<Device> device_;
  std::unique_ptr<Device> host_ = make_host_device("");
};

}  // namespace tutti
