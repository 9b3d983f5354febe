// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One segment of memory a rank, which the ranks of a memory domain read and write in place. What
// lies in the segments, and who may touch it when, is the user's.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/topology.hpp"

namespace tutti::detail {

struct Free {
  Device* device = nullptr;  ///< whose memory it is; null: the host's
  void operator()(std::byte* pointer) const
  {
    if (device != nullptr)
      device->deallocate(pointer);
    else
      std::free(pointer);
  }
};
/// Private memory: of `device`, or of the host in whole pages, so that a device can pin it. Zeroed.
/// Empty when there is none.
using AlignedBytes = std::unique_ptr<std::byte[], Free>;
AlignedBytes allocate_aligned(std::size_t bytes, Device* device = nullptr) noexcept;
/// "1.5 GiB".
std::string readable_bytes(std::size_t bytes);
/// What allocate_aligned takes for so many bytes: at least one page.
std::size_t whole_pages(std::size_t bytes);

/// Zeroed segments, reserved page by page. Where ranks share memory they lie in an MPI shared
/// window; a rank that is alone, and every rank of a job in which one domain lacks space for its
/// window, has private memory, and then nobody sees another rank's segment.
class NodeMemory {
 public:
  /// Collective over topology.world(). `shared_bytes` is what this rank's segment needs where
  /// memory is shared, `private_bytes` where it is not; a rank alone in its domain gives the same
  /// for both. `limit` bounds the window of a domain. `place` says where private memory is (null:
  /// on the host); with `why_private`, equal on all ranks and not empty, all of it is. Throws
  /// DeviceError on all ranks when one cannot allocate.
  NodeMemory(const Topology& topology, std::size_t shared_bytes, std::size_t private_bytes,
             std::size_t limit, Device* place = nullptr, std::string why_private = {});

  /// Whether `a` and `b` see each other's segments.
  bool same_domain(int a, int b) const
  {
    return a == b || (shared_ && topology_.same_domain(a, b));
  }
  /// This process's address of a rank's segment; only of this rank's domain.
  std::byte* segment(int rank) const;
  /// The host's pages in which the segments of this domain lie in this process, merged where they
  /// touch.
  std::vector<std::span<std::byte>> pages() const;
  /// True if some domain of the job shares memory.
  bool shared() const { return shared_; }
  /// How memory is shared in this job, or why it is not; the same on all ranks.
  const std::string& description() const { return description_; }

  /// Collective over the domain: all its ranks have come here.
  void barrier() const;
  /// Makes this rank's stores visible to the domain, and the domain's to this rank. Local.
  void fence() const;
  /// Collective over topology.world(). A second call does nothing. Without it the window is leaked.
  void close();

 private:
  std::string lack_of_space(std::size_t bytes, std::size_t limit) const;
  void create_window(std::size_t bytes);
  void free_window();

  const Topology& topology_;
  bool shared_ = false;
  std::string description_;
  MPI_Win window_ = MPI_WIN_NULL;
  AlignedBytes private_;
  std::size_t private_bytes_ = 0;
  std::vector<std::byte*> segments_;          // of the ranks of my domain, ascending
  std::vector<std::span<std::byte>> mapped_;  // what the window has of each of them
};

}  // namespace tutti::detail
