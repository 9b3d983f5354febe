// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Of a ShardedAdam: digests of the weights as their owners wrote them, and the check of the copies
// that ranks read against them.
#include <algorithm>

#include "sharded_adam_state.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti {

void ShardedAdam::State::allocate_digests()
{
  digest_table = DeviceArray(device, std::max<std::size_t>(1, layout.blocks()) * 8);
  for (auto* of_slot : {&digests, &staged_digests, &slot_digests, &replicated_digests})
    of_slot->resize(layout.blocks());
  own_digests.resize(blocks());
  found_digests.resize(layout.blocks() / exchange.sharers().size() + 1);
  int total = 0;
  for (int d = 0; d < plan.data_parallel(); ++d) {
    const int rank = d * plan.model_parallel() + topology.model_rank();
    digest_counts.push_back(static_cast<int>(plan.shard(rank).size()));
    digest_begins.push_back(total);
    total += digest_counts.back();
  }
}

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
  check_mpi(MPI_Allgatherv(s.own_digests.data(), static_cast<int>(s.blocks()), MPI_UINT64_T,
                           s.slot_digests.data(), s.digest_counts.data(), s.digest_begins.data(),
                           MPI_UINT64_T, s.topology.data_axis()),
            "MPI_Allgatherv of digests");
  std::fill(s.staged_digests.begin(), s.staged_digests.end(), 0);
  for (int d = 0; d < s.plan.data_parallel(); ++d) {
    const auto& shard = s.plan.shard(d * slots + s.topology.model_rank());
    for (std::size_t i = 0; i < shard.size(); ++i)
      s.staged_digests[shard[i]] = s.slot_digests[static_cast<std::size_t>(s.digest_begins[d]) + i];
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
  for (std::size_t b = begin; b < end;) {
    const Piece& piece = s.layout.piece(s.layout.parameter_of(b));
    const std::size_t n = std::min(end, piece.first_block + piece.blocks) - b;
    s.digest(s.found_digests.data() + (b - begin), s.exchange.weights() + s.layout.byte_offset(b),
             s.layout.precision_of(b), n);
    b += n;
  }
  for (std::size_t b = begin; b < end; ++b) {
    if (s.found_digests[b - begin] == s.digests[b]) continue;
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

}  // namespace tutti
