// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Makes every contribution to an owned block readable by its owner, and every new weight readable
// by its users: in place through memory that the ranks of a node share, by messages across memory
// domains. The arithmetic is not here: the sum kernel reads the table of sources, the update kernel
// the table of targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/block.hpp"
#include "tutti/device.hpp"
#include "tutti/shard_plan.hpp"
#include "tutti/topology.hpp"

namespace tutti {

struct ExchangeOptions {
  /// How contributions to a block reach its owner.
  enum class Method : std::uint8_t {
    ordered,  ///< all become readable, and the owner adds them in rank order: the same bits on
              ///< every path
    reduce_scatter,  ///< MPI_Reduce_scatter in fp32 over the data-parallel axis, for comparison: no
                     ///< promise of bits
  };
  /// Contributions are fp32 (several micro-batches or an fp32 wire); otherwise each parameter's own
  /// precision.
  bool fp32_wire = false;
  Method method = Method::ordered;
  /// What carries messages of `ordered` between memory domains.
  enum class Transport : std::uint8_t {
    mpi,
    nccl,  ///< between CUDA devices only; each rank is a memory domain of its own
  };
  Transport transport = Transport::mpi;
  /// Where the kernels run that read and write the buffers; null: on the host. With NCCL, and where
  /// MPI is GPU-aware and no other rank shares this rank's memory, the buffers are the device's;
  /// otherwise they are the host's. Must outlive the exchange. May differ between ranks.
  Device* device = nullptr;
  /// Messages are split at this size (never inside a block); at most 1 GiB, so that counts fit an
  /// int.
  std::size_t message_bytes = std::size_t{1} << 30;
  /// Node-shared memory that one memory domain may use. If one domain needs more than this or than
  /// there is, the whole job uses private memory and messages.
  std::size_t shared_memory_limit = std::numeric_limits<std::size_t>::max();
};

/// Buffers of one ShardedAdam and the way of data between ranks. Construction and `close()` are
/// collective over topology.world(); all allocation happens in the constructor. It throws on all
/// ranks the same InvalidArgument (plan and topology do not fit, ranks disagree, `reduce_scatter`
/// with M > 1 and a `partial` parameter, or NCCL where it cannot be) or DeviceError (a rank is out
/// of memory).
/// Topology and plan must outlive it. The destructor without close() leaks, because freeing is
/// collective.
class Exchange {
 public:
  Exchange(const Topology& topology, const ShardPlan& plan, ExchangeOptions options);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();
  /// Collective over topology.world(); the pointers that were handed out end here. A second call
  /// does nothing.
  void close();

  /// This rank's contribution in its slot's layout: block b at contribution_offset(b), zeroed at
  /// start.
  std::byte* contribution() const;
  std::size_t contribution_offset(std::size_t block) const;
  /// Whether contributions are fp32 whatever the parameters' own precision (`fp32_wire` or
  /// `reduce_scatter`).
  bool fp32_contributions() const;
  /// Whether contributions and weights of this rank lie where only its device reads and writes.
  bool in_device_memory() const;

  /// Table for Device::sum_blocks, in shard order; sources in world-rank order. Pointers stay
  /// valid.
  const std::vector<SumBlock>& sum_blocks() const;
  const std::vector<const void*>& sources() const;
  /// World rank of each entry of sources(); -1 for a sum over ranks (`reduce_scatter`).
  const std::vector<int>& source_rank() const;
  /// Blocks of this rank's slot that nobody reads from this rank as they are: the rank scans its
  /// own contribution to them. `ordered`: identical replicas owned by another slot;
  /// `reduce_scatter`: all.
  const std::vector<std::uint32_t>& unread_blocks() const;

  /// Pages of the host that kernels on this rank's device read and write; they are pinned for a
  /// device that does not see host memory by itself. Valid until close().
  std::vector<std::span<std::byte>> kernel_pages() const;

  /// Collective over the memory domain: everybody's contribution is complete and visible after it.
  void enter();
  /// Collective: contributions from other domains have arrived in the receive buffers. No-op within
  /// one domain.
  void exchange();

  /// The published weights of this rank's slot (block b at layout.byte_offset(b)); shared by the
  /// ranks of one slot and domain. Valid until the next `publish`d step's stage phase.
  const std::byte* weights() const;
  std::byte* staged_weights() const;
  /// World ranks that read the same copy of the weights as this one, ascending; it lies in the
  /// memory of the first.
  const std::vector<int>& sharers() const;
  /// Where the owner's update kernel writes block i of its shard: weights (in place) or staged
  /// weights.
  std::vector<void*> weight_targets(bool in_place) const;
  /// Collective: after the owners have written their blocks: copies them to the other slots of the
  /// domain and sends them to other domains. Complete for this rank's own part on return; the
  /// confirm ballot is the barrier after which all are (call `fence()` before and after it).
  void gather(bool in_place);
  /// Makes this rank's stores to shared memory visible and sees the others' (MPI_Win_sync). Local.
  void fence();
  /// Swaps published and staged weights. Local, cannot fail.
  void publish() noexcept;

  /// "shared memory (4 ranks)" or "messages" with the reason, for the log.
  const std::string& description() const;
  /// Bytes that this rank sent to, and received from, other memory domains since the last
  /// exchange() began; with `reduce_scatter` the exchange counts with what a ring would move.
  std::size_t bytes_sent() const;
  std::size_t bytes_received() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
