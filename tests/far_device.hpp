// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A device whose memory the host cannot touch, without a GPU: the host kernels on pages that are
// closed but during its own calls. Code that reads device memory by itself dies here as it would
// with CUDA, and kernels are given nothing but device memory and pinned pages.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace tutti {

namespace test {
/// Whether tests of far memory run on a real GPU: TUTTI_TEST_DEVICE=cuda, as `ctest -L gpu` has it.
inline bool on_cuda()
{
  const char* const device = std::getenv("TUTTI_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}
}  // namespace test

class FarDevice final : public Device {
 public:
  /// `mpi_reaches_it`: the memory stays open, as for a GPU-aware MPI, which moves it by itself.
  explicit FarDevice(bool mpi_reaches_it = false) : stays_open_(mpi_reaches_it) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "far memory on " + host_->name(); }

  void* allocate(std::size_t bytes) override
  {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t size = (bytes / page + 1) * page;
    void* memory = mmap(nullptr, size, stays_open_ ? PROT_READ | PROT_WRITE : PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_[static_cast<char*>(memory)] = size;
    return memory;
  }
  void deallocate(void* memory) noexcept override
  {
    const auto found = memory_.find(static_cast<char*>(memory));
    if (found == memory_.end()) return;
    munmap(memory, found->second);
    memory_.erase(found);
  }
  void copy(void* to, const void* from, std::size_t bytes) override
  {
    const Open open(*this);
    host_->copy(to, from, bytes);
  }
  void pin(void* memory, std::size_t bytes) override
  {
    if (!pinned_.emplace(static_cast<char*>(memory), bytes).second)
      throw DeviceError("pages are pinned already");
  }
  void unpin(void* memory) noexcept override { pinned_.erase(static_cast<char*>(memory)); }
  std::size_t pinned() const { return pinned_.size(); }

  BlockScan accumulate(float* sum, const void* gradient, Precision precision, std::size_t elements,
                       bool first) override
  {
    const Open open(*this);
    require(sum, "accumulate's sum");
    require(gradient, "accumulate's gradient");
    return host_->accumulate(sum, gradient, precision, elements, first);
  }
  BlockScan scan(const void* values, Precision precision, std::size_t elements) override
  {
    const Open open(*this);
    require(values, "scan's values");
    return host_->scan(values, precision, elements);
  }
  void sum_blocks(const SumBlocks& work) override
  {
    const Open open(*this);
    require(work.block, "the table of a sum");
    require(work.sources, "the sources of a sum");
    require(work.sum, "a sum");
    require(work.scan, "the scan of a sum");
    for (std::size_t b = 0; b < work.blocks; ++b)
      for (std::uint32_t s = 0; s < work.block[b].sources; ++s)
        require(work.sources[work.block[b].first_source + s], "a source of a sum");
    host_->sum_blocks(work);
  }
  void adam_blocks(const AdamBlocks& work) override
  {
    const Open open(*this);
    require(work.block, "the table of an update");
    require(work.scalars, "the scalars of an update");
    for (const float* array : {work.gradient, work.master, work.exp_avg, work.exp_avg_sq})
      require(array, "an array of an update");
    for (std::size_t b = 0; b < work.blocks; ++b)
      require(work.block[b].weights, "the weights of an update");
    host_->adam_blocks(work);
  }
  void convert(void* to, Precision precision, const float* values, std::size_t elements) override
  {
    const Open open(*this);
    require(to, "a conversion's target");
    require(values, "a conversion's values");
    host_->convert(to, precision, values, elements);
  }
  void digest_blocks(std::uint64_t* digest, const void* values, Precision precision,
                     std::size_t blocks) override
  {
    const Open open(*this);
    require(digest, "digests");
    require(values, "a digest's values");
    host_->digest_blocks(digest, values, precision, blocks);
  }

 private:
  /// Device memory is open while one of these lives.
  class Open {
   public:
    explicit Open(FarDevice& device) : device_(device), lock_(device.mutex_)
    {
      protect(PROT_READ | PROT_WRITE);
    }
    Open(const Open&) = delete;
    ~Open() { protect(PROT_NONE); }

   private:
    void protect(int access)
    {
      if (device_.stays_open_) return;
      for (const auto& [memory, bytes] : device_.memory_) mprotect(memory, bytes, access);
    }
    FarDevice& device_;
    std::unique_lock<std::mutex> lock_;
  };

  static bool within(const std::map<char*, std::size_t>& ranges, const void* pointer)
  {
    char* const at = static_cast<char*>(const_cast<void*>(pointer));
    auto after = ranges.upper_bound(at);
    if (after == ranges.begin()) return false;
    --after;
    return at < after->first + after->second;
  }
  void require(const void* pointer, const char* what) const
  {
    if (!within(memory_, pointer) && !within(pinned_, pointer))
      throw DeviceError(std::string(what) + " is neither device memory nor pinned");
  }

  std::unique_ptr<Device> host_ = make_host_device();
  std::map<char*, std::size_t> memory_, pinned_;
  std::mutex mutex_;
  bool stays_open_ = false;
};

namespace test {
/// A FarDevice, or with TUTTI_TEST_DEVICE=cuda the GPU that `rank` of a node gets.
inline std::unique_ptr<Device> make_far_device(int rank, bool mpi_reaches_it = false)
{
  if (on_cuda()) return make_cuda_device(rank % cuda_device_count());
  return std::make_unique<FarDevice>(mpi_reaches_it);
}
}  // namespace test

}  // namespace tutti
