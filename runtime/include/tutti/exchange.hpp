// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Makes every contribution to an owned block readable by its owner, and every new weight readable
// by its users: in place through memory that the ranks of a node share, by messages across memory
// domains. The arithmetic is not here: the sum kernel reads the table of sources, the update kernel
// the table of targets.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tutti/block.hpp"
#include "tutti/shard_plan.hpp"
#include "tutti/topology.hpp"

namespace tutti {

struct ExchangeOptions {
  /// Contributions are fp32 (several micro-batches or an fp32 wire); otherwise each parameter's own
  /// precision.
  bool fp32_wire = false;
};

/// Buffers of one ShardedAdam and the way of data between ranks. Construction and `close()` are
/// collective over topology.world(); all allocation happens in the constructor, which throws the
/// same error on all ranks.
class Exchange {
 public:
  Exchange(const Topology& topology, const ShardPlan& plan, ExchangeOptions options);
  ~Exchange();
  void close();

  /// This rank's contribution in its slot's layout: block b at contribution_offset(b), zeroed at
  /// start.
  std::byte* contribution() const;
  std::size_t contribution_offset(std::size_t block) const;

  /// Table for Device::sum_blocks, in shard order; sources in world-rank order. Pointers stay
  /// valid.
  const std::vector<SumBlock>& sum_blocks() const;
  const std::vector<const void*>& sources() const;
  /// World rank of each entry of sources().
  const std::vector<int>& source_rank() const;
  /// Blocks of this rank's slot that nobody reads from this rank (identical replicas owned by
  /// another slot): the rank scans its own contribution to them.
  const std::vector<std::uint32_t>& unread_blocks() const;

  /// Collective over the memory domain: everybody's contribution is complete and visible after it.
  void enter();
  /// Collective: contributions from other domains have arrived in the receive buffers. No-op within
  /// one domain.
  void exchange();

  /// The published weights of this rank's slot (block b at layout.byte_offset(b)); shared by the
  /// ranks of one slot and domain. Valid until the next `publish`d step's stage phase.
  const std::byte* weights() const;
  std::byte* staged_weights() const;
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
  /// Bytes that this rank sent to and received from other domains in the last step.
  std::size_t bytes_sent() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
