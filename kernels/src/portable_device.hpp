// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A Device whose kernels are the portable ones on a Kokkos execution space. Copies are left to the
// concrete device, because between host and device memory they are a matter of the backend's
// runtime.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <exception>
#include <limits>
#include <new>
#include <string>

#include "portable_kernels.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {

template <class Space>
class PortableDevice : public Device {
 public:
  using Memory = typename Space::memory_space;

  explicit PortableDevice(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }

  void* allocate(std::size_t bytes) override
  {
    void* pointer = nullptr;
    try {
      pointer = Kokkos::kokkos_malloc<Memory>("tutti::device_memory", bytes == 0 ? 1 : bytes);
    } catch (const std::exception&) {
      throw std::bad_alloc();
    }
    if (pointer == nullptr) throw std::bad_alloc();
    in_kernel("allocate", [&] {
      Kokkos::deep_copy(
          Kokkos::View<unsigned char*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
              static_cast<unsigned char*>(pointer), bytes),
          static_cast<unsigned char>(0));
    });
    return pointer;
  }
  void deallocate(void* pointer) noexcept override
  {
    if (pointer != nullptr) Kokkos::kokkos_free<Memory>(pointer);
  }

  BlockScan accumulate(float* sum, const void* gradient, Precision precision, std::size_t elements,
                       bool first) override
  {
    return scan_all("tutti::accumulate",
                    AccumulateBody{sum, gradient, precision, elements, first, nullptr});
  }
  BlockScan scan(const void* values, Precision precision, std::size_t elements) override
  {
    return scan_all("tutti::scan",
                    AccumulateBody{nullptr, values, precision, elements, false, nullptr});
  }
  void sum_blocks(const SumBlocks& work) override
  {
    launch("tutti::sum_blocks", work.blocks, SumBody{work});
  }
  void adam_blocks(const AdamBlocks& work) override
  {
    launch("tutti::adam_blocks", work.blocks, AdamBody{work});
  }
  void convert(void* to, Precision precision, const float* values, std::size_t elements) override
  {
    launch("tutti::convert", blocks_of(elements), ConvertBody{to, precision, values, elements});
  }
  void digest_blocks(std::uint64_t* digest, const void* values, Precision precision,
                     std::size_t blocks) override
  {
    launch("tutti::digest_blocks", blocks, DigestBody{digest, values, precision});
  }

 private:
  /// Any failure of the backend becomes a DeviceError.
  template <class F>
  void in_kernel(const char* what, const F& body) const
  {
    try {
      body();
    } catch (const std::exception& error) {
      throw DeviceError(std::string(what) + " failed on " + name_ + " (" + error.what() + ")");
    }
  }

  template <class Body>
  void launch(const char* label, std::size_t blocks, const Body& body) const
  {
    if (blocks > static_cast<std::size_t>(std::numeric_limits<int>::max()))
      throw DeviceError(std::string(label) + " was given " + std::to_string(blocks) +
                        " blocks (a launch takes 2^31 - 1); split the call");
    in_kernel(label, [&] { for_each_block<Space>(label, blocks, body); });
  }

  BlockScan scan_all(const char* label, AccumulateBody body)
  {
    const std::size_t blocks = blocks_of(body.elements);
    BlockScan whole;
    if (blocks == 0) return whole;
    in_kernel(label, [&] {
      if (scans_.extent(0) < blocks) {
        scans_ = Scans();  // give the old one back first
        scans_ = Scans(Kokkos::ViewAllocateWithoutInitializing("tutti::chunk_scans"), blocks);
      }
    });
    body.scan = scans_.data();
    launch(label, blocks, body);
    in_kernel(label, [&] {
      const auto used = Kokkos::subview(scans_, Kokkos::make_pair(std::size_t{0}, blocks));
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), used);
      for (std::size_t b = 0; b < blocks; ++b) append_scan(whole, host(b), b);
    });
    return whole;
  }

  using Scans = Kokkos::View<BlockScan*, Memory>;
  std::string name_;
  Scans scans_;  ///< kept between calls: an allocation would synchronize a device
};

}  // namespace tutti::detail
