// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where the buffers of an exchange lie, and the tables and messages that follow from the shard
// plan. The sum itself is a kernel's; memory that ranks share is node_memory.cpp, messages
// message_set.cpp.
#include "tutti/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "message_set.hpp"
#include "nccl_channel.hpp"
#include "node_memory.hpp"
#include "rank_label.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/transports.hpp"

namespace tutti {
namespace {

using Method = ExchangeOptions::Method;
using Transport = ExchangeOptions::Transport;

constexpr std::size_t largest_message = std::size_t{1} << 30;
constexpr int contribution_tag = 1;
constexpr int weights_tag = 2;

// The format of contributions: in fp32 block b is simply the b-th, otherwise as the weights lie.
struct Wire {
  bool fp32;
  std::size_t offset(const SlotLayout& layout, std::size_t block) const
  {
    return fp32 ? block * block_elements * sizeof(float) : layout.byte_offset(block);
  }
  Precision precision(const SlotLayout& layout, std::size_t block) const
  {
    return fp32 ? Precision::fp32 : layout.precision_of(block);
  }
  std::size_t bytes(const SlotLayout& layout, std::size_t block) const
  {
    return block_elements * bytes_of(precision(layout, block));
  }
  std::size_t total(const SlotLayout& layout) const
  {
    return fp32 ? layout.blocks() * block_elements * sizeof(float) : layout.bytes();
  }
};

std::size_t weights_bytes(const SlotLayout& layout, std::size_t block)
{
  return block_elements * bytes_of(layout.precision_of(block));
}

// What is wrong with the arguments on this rank; empty if nothing.
std::string refusal(const Topology& topology, const ShardPlan& plan, const ExchangeOptions& options)
{
  if (plan.size() != topology.size() || plan.model_parallel() != topology.model_parallel()) {
    return fmt::format(
        "the shard plan does not fit the ranks (it is for {} x {} data- by model-parallel ranks, "
        "the topology has {} x {}); make the plan from the topology's degrees",
        plan.data_parallel(), plan.model_parallel(), topology.data_parallel(),
        topology.model_parallel());
  }
  try {
    gpu_aware_mpi();  // asked by those ranks alone that it matters to; what it refuses ends all
  } catch (const ConfigError& error) {
    return error.what();
  }
  if (options.message_bytes == 0) {
    return "messages of 0 bytes cannot carry anything (message_bytes is 0); use 1 GiB";
  }
  if (options.transport == Transport::nccl) {
    const char* reason = nccl_version().empty()              ? "tutti was built without it"
                         : options.method != Method::ordered ? "reduce_scatter is MPI's"
                         : options.device == nullptr || options.device->kind() != DeviceKind::cuda
                             ? "this rank computes on the host"
                             : nullptr;
    if (reason != nullptr)
      return fmt::format("rank {} cannot exchange by NCCL ({}); use MPI", topology.rank(), reason);
  }
  if (options.method == Method::reduce_scatter && plan.model_parallel() > 1) {
    for (std::size_t p = 0; p < plan.layout(0).size(); ++p) {
      if (plan.placement(p) == Placement::replicated &&
          plan.gradient(p) == ReplicaGradient::partial) {
        return fmt::format(
            "parameter {} has partial gradients on {} model-parallel slots (reduce_scatter sums "
            "over the data-parallel axis only); use the ordered exchange",
            p, plan.model_parallel());
      }
    }
  }
  return {};
}

// Collective: throws the same InvalidArgument on all ranks if one has a refusal or other options.
void check_arguments(const Topology& topology, const ShardPlan& plan,
                     const ExchangeOptions& options)
{
  std::string reason = first_text(topology.world(), refusal(topology, plan, options));
  if (!reason.empty()) throw InvalidArgument(reason);

  const std::array<unsigned long long, 5> mine{
      plan.hash(), options.fp32_wire ? 1u : 0u, static_cast<unsigned long long>(options.method),
      static_cast<unsigned long long>(options.transport), options.message_bytes};
  const std::array<const char*, 5> name{"the shard plan", "fp32_wire", "the exchange method",
                                        "the transport", "message_bytes"};
  std::array<unsigned long long, 5> first = mine;
  check_mpi(MPI_Bcast(first.data(), 5, MPI_UNSIGNED_LONG_LONG, 0, topology.world()), "MPI_Bcast");
  const auto other = std::mismatch(mine.begin(), mine.end(), first.begin());
  if (other.first != mine.end()) {
    reason =
        fmt::format("rank {} disagrees with rank 0 on {}; give all ranks the same options",
                    topology.rank(), name[static_cast<std::size_t>(other.first - mine.begin())]);
  }
  reason = first_text(topology.world(), reason);
  if (!reason.empty()) throw InvalidArgument(reason);
}

}  // namespace

struct Exchange::State {
  State(const Topology& topology, const ShardPlan& plan, const ExchangeOptions& options);

  const Topology& topology;
  const ShardPlan& plan;
  const ExchangeOptions options;
  const Wire wire;
  const int rank, slot, slots;
  const SlotLayout& layout;
  const std::vector<std::uint32_t>& shard;

  Device* const place;        // of private memory; null: the host's
  detail::NodeMemory memory;  // contribution, and weights at the leader of a (domain, slot)
  std::string description;
  std::array<std::vector<std::byte*>, 2> slot_weights;  // [buffer][slot], null if not in my domain
  int published = 0;                                    // which buffer

  std::vector<SumBlock> blocks;
  std::vector<const void*> sources;
  std::vector<int> source_rank;
  std::vector<std::uint32_t> unread;
  std::vector<int> sharers;

  std::size_t received_bytes = 0;
  detail::AlignedBytes received;  // by owner: contributions from other domains, or the reduced sum
  detail::MessageSet contributions, weights;
  std::unique_ptr<detail::NcclChannel> nccl;  // carries both, if it is there
  std::size_t sent = 0, arrived = 0;

  // reduce_scatter only
  std::size_t round_blocks = 0, rounds = 0;  // at most so many blocks of each owner in a round
  detail::AlignedBytes packed;               // null: the contribution is in owner order as it is
  std::vector<int> round_counts;

  Device* place_of_memory() const;
  void transfer(detail::MessageSet& messages, const std::byte* from, std::byte* to, int tag)
  {
    if (nccl)
      nccl->transfer(messages, from, to);
    else
      messages.transfer(topology.world(), from, to, tag);
  }
  // What both sides of a message call a block of one of its slots.
  static std::uint64_t place_in(const SlotLayout& l, std::size_t block)
  {
    const std::uint32_t parameter = l.parameter_of(block);
    return (std::uint64_t{parameter} << 40) + (block - l.piece(parameter).first_block);
  }
  bool reduces() const { return options.method == Method::reduce_scatter; }
  int slot_of(int r) const { return r % slots; }
  bool replicated(const SlotLayout& l, std::size_t block) const
  {
    return plan.placement(l.parameter_of(block)) == Placement::replicated;
  }
  bool summed_over_slots(const SlotLayout& l, std::size_t block) const
  {
    return replicated(l, block) && plan.gradient(l.parameter_of(block)) == ReplicaGradient::partial;
  }
  // The block of slot `to` that holds the same elements of a replicated parameter.
  std::size_t same_block(const SlotLayout& from, std::size_t block, const SlotLayout& to) const
  {
    const std::uint32_t parameter = from.parameter_of(block);
    return block - from.piece(parameter).first_block + to.piece(parameter).first_block;
  }
  // The lowest rank of r's slot in r's domain: it hosts their weights.
  bool leads(int r) const
  {
    if (!memory.shared()) return true;
    for (int q : topology.domain_of(r)) {
      if (slot_of(q) == slot_of(r)) return q == r;
    }
    return true;
  }

  std::size_t segment_bytes(bool shared) const;
  void place_weights();
  void list_ordered_sources(const std::vector<std::size_t>& region);
  void plan_contribution_messages(const std::vector<std::size_t>& region);
  void plan_weights_messages();
  [[nodiscard]] bool plan_reduction();
  std::string build();
  void reduce();
  void close();
};

Exchange::State::State(const Topology& topology_, const ShardPlan& plan_,
                       const ExchangeOptions& options_)
    : topology(topology_),
      plan(plan_),
      options(options_),
      wire{options_.fp32_wire || options_.method == Method::reduce_scatter},
      rank(topology_.rank()),
      slot(topology_.model_rank()),
      slots(topology_.model_parallel()),
      layout(plan_.layout(slot)),
      shard(plan_.shard(rank)),
      place(place_of_memory()),
      memory(topology_, segment_bytes(true), segment_bytes(false), options_.shared_memory_limit,
             place, options_.transport == Transport::nccl ? "by NCCL" : ""),
      contributions(std::min(options_.message_bytes, largest_message)),
      weights(std::min(options_.message_bytes, largest_message))
{
  // Everything from here is local until all ranks know that it went well everywhere.
  std::string failure;
  try {
    failure = build();
  } catch (const std::bad_alloc&) {
    failure = fmt::format(
        "rank {}: cannot allocate the tables of an exchange (out of memory); use more ranks, or a "
        "smaller model",
        rank);
  }
  failure = first_text(topology.world(), failure);
  if (!failure.empty()) {
    close();
    throw DeviceError(failure);
  }
  if (options.transport == Transport::nccl && topology.size() > 1)
    nccl = std::make_unique<detail::NcclChannel>(topology.world());
}

// Where a rank's own buffers are best: a device's, if all that reads and writes them can reach it
// there.
Device* Exchange::State::place_of_memory() const
{
  if (options.device == nullptr || options.device->kind() != DeviceKind::cuda) return nullptr;
  if (options.transport == Transport::nccl) return options.device;
  const bool alone = topology.domain_of(rank).size() == 1 && topology.size() > 1;
  return alone && !reduces() && gpu_aware_mpi() ? options.device : nullptr;
}

// A segment is the contribution, then published and staged weights where this rank hosts them. Also
// used before `memory` is there, hence the parameter.
std::size_t Exchange::State::segment_bytes(bool shared) const
{
  bool hosts = true;
  if (shared) {
    for (int q : topology.domain_of(rank)) {
      if (slot_of(q) == slot) {
        hosts = q == rank;
        break;
      }
    }
  }
  return std::max<std::size_t>(wire.total(layout) + (hosts ? 2 * layout.bytes() : 0), 1);
}

std::string Exchange::State::build()
{
  place_weights();
  for (int q = 0; q < topology.size(); ++q)
    if (memory.same_domain(q, rank) && slot_of(q) == slot) sharers.push_back(q);
  description = reduces() ? fmt::format("MPI_Reduce_scatter; weights by {}", memory.description())
                          : memory.description();
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    const std::size_t b = block - layout.piece(layout.parameter_of(block)).first_block;
    const bool elsewhere = replicated(layout, block) &&
                           b % static_cast<std::size_t>(slots) != static_cast<std::size_t>(slot);
    if (reduces() || (elsewhere && !summed_over_slots(layout, block))) {
      unread.push_back(static_cast<std::uint32_t>(block));
    }
  }

  // Where in `received` each rank's contributions to this shard begin, in rank order; a rank sends
  // all blocks of the shard if it is of this slot, otherwise those that are summed over slots.
  std::vector<std::size_t> region(static_cast<std::size_t>(topology.size()), 0);
  std::size_t bytes = 0;
  if (reduces()) {
    bytes = shard.size() * block_elements * sizeof(float);
  } else {
    std::size_t of_slot = 0;
    std::size_t of_others = 0;
    for (std::uint32_t block : shard) {
      of_slot += wire.bytes(layout, block);
      if (summed_over_slots(layout, block)) of_others += wire.bytes(layout, block);
    }
    for (int q = 0; q < topology.size(); ++q) {
      region[q] = bytes;
      if (!memory.same_domain(q, rank)) bytes += slot_of(q) == slot ? of_slot : of_others;
    }
  }
  received = detail::allocate_aligned(bytes, place);
  received_bytes = bytes;
  if (!received) {
    return fmt::format(
        "rank {}: cannot allocate {} for the contributions of other ranks (out of memory); use "
        "more ranks, or a smaller model",
        rank, detail::readable_bytes(bytes));
  }
  if (reduces()) {
    if (!plan_reduction()) {
      return fmt::format(
          "rank {}: cannot allocate the send buffer of reduce_scatter (out of memory); "
          "lower message_bytes",
          rank);
    }
  } else {
    list_ordered_sources(region);
    plan_contribution_messages(region);
  }
  plan_weights_messages();
  return {};
}

void Exchange::State::place_weights()
{
  for (auto& buffers : slot_weights) buffers.assign(static_cast<std::size_t>(slots), nullptr);
  for (int r = 0; r < topology.size(); ++r) {
    if (!memory.same_domain(r, rank) || !leads(r)) continue;
    const SlotLayout& theirs = plan.layout(slot_of(r));
    std::byte* const first = memory.segment(r) + wire.total(theirs);
    slot_weights[0][slot_of(r)] = first;
    slot_weights[1][slot_of(r)] = first + theirs.bytes();
  }
}

void Exchange::State::list_ordered_sources(const std::vector<std::size_t>& region)
{
  std::size_t count = 0;
  for (std::uint32_t block : shard) {
    count += static_cast<std::size_t>(summed_over_slots(layout, block) ? topology.size()
                                                                       : topology.data_parallel());
  }
  blocks.reserve(shard.size());
  sources.reserve(count);
  source_rank.reserve(count);

  // The next contribution of each rank of another domain in `received`.
  std::vector<std::size_t> next = region;
  for (std::uint32_t block : shard) {
    const bool all_slots = summed_over_slots(layout, block);
    SumBlock entry;
    entry.first_source = static_cast<std::uint32_t>(sources.size());
    entry.precision = wire.precision(layout, block);
    for (int q = all_slots ? 0 : slot; q < topology.size(); q += all_slots ? 1 : slots) {
      if (memory.same_domain(q, rank)) {
        const SlotLayout& theirs = plan.layout(slot_of(q));
        const std::size_t there = slot_of(q) == slot ? block : same_block(layout, block, theirs);
        sources.push_back(memory.segment(q) + wire.offset(theirs, there));
      } else {
        sources.push_back(received.get() + next[q]);
        next[q] += wire.bytes(layout, block);
      }
      source_rank.push_back(q);
    }
    entry.sources = static_cast<std::uint32_t>(sources.size()) - entry.first_source;
    blocks.push_back(entry);
  }
}

void Exchange::State::plan_contribution_messages(const std::vector<std::size_t>& region)
{
  bool any_summed = false;
  for (std::size_t p = 0; p < layout.size() && slots > 1; ++p) {
    any_summed |=
        plan.placement(p) == Placement::replicated && plan.gradient(p) == ReplicaGradient::partial;
  }
  for (int q = 0; q < topology.size(); ++q) {
    if (memory.same_domain(q, rank)) continue;
    const bool of_slot = slot_of(q) == slot;
    if (!of_slot && !any_summed) continue;

    const SlotLayout& theirs = plan.layout(slot_of(q));
    for (std::uint32_t block : plan.shard(q)) {
      if (!of_slot && !summed_over_slots(theirs, block)) continue;
      const std::size_t mine = of_slot ? block : same_block(theirs, block, layout);
      contributions.append(wire.offset(layout, mine), wire.bytes(layout, mine),
                           place_in(theirs, block));
    }
    contributions.send(q, contributions.finish());

    std::size_t at = region[q];
    for (std::uint32_t block : shard) {
      if (!of_slot && !summed_over_slots(layout, block)) continue;
      contributions.append(at, wire.bytes(layout, block), place_in(layout, block));
      at += wire.bytes(layout, block);
    }
    contributions.receive(q, contributions.finish());
  }
  contributions.commit();
}

void Exchange::State::plan_weights_messages()
{
  // Every reader gets the same blocks of this shard: all of them in this slot, replicas in others.
  for (std::uint32_t block : shard) {
    weights.append(layout.byte_offset(block), weights_bytes(layout, block),
                   place_in(layout, block));
  }
  const detail::MessageSet::Sequence all = weights.finish();
  detail::MessageSet::Sequence replicas;
  if (slots > 1) {
    for (std::uint32_t block : shard) {
      if (replicated(layout, block)) {
        weights.append(layout.byte_offset(block), weights_bytes(layout, block),
                       place_in(layout, block));
      }
    }
    replicas = weights.finish();
  }
  for (int q = 0; q < topology.size(); ++q) {
    if (!memory.same_domain(q, rank) && leads(q))
      weights.send(q, slot_of(q) == slot ? all : replicas);
  }

  if (leads(rank)) {
    for (int q = 0; q < topology.size(); ++q) {
      if (memory.same_domain(q, rank)) continue;
      const SlotLayout& theirs = plan.layout(slot_of(q));
      for (std::uint32_t block : plan.shard(q)) {
        const bool of_slot = slot_of(q) == slot;
        if (!of_slot && !replicated(theirs, block)) continue;
        const std::size_t mine = of_slot ? block : same_block(theirs, block, layout);
        weights.append(layout.byte_offset(mine), weights_bytes(layout, mine),
                       place_in(theirs, block));
      }
      weights.receive(q, weights.finish());
    }
  }
  weights.commit();
}

// False when the send buffer cannot be allocated.
bool Exchange::State::plan_reduction()
{
  for (std::size_t i = 0; i < shard.size(); ++i) {
    blocks.push_back({static_cast<std::uint32_t>(i), 1, Precision::fp32});
    sources.push_back(received.get() + i * block_elements * sizeof(float));
    source_rank.push_back(-1);
  }

  // The counts of a round, added up, must fit an int inside MPI too.
  constexpr std::size_t block_bytes = block_elements * sizeof(float);
  const std::size_t owners = static_cast<std::size_t>(topology.data_parallel());
  const std::size_t limit = std::min(options.message_bytes, largest_message);
  std::size_t longest = 0;
  std::size_t owned = 0;
  for (std::size_t d = 0; d < owners; ++d) {
    const std::size_t length = plan.shard(static_cast<int>(d) * slots + slot).size();
    longest = std::max(longest, length);
    owned += length;
  }
  round_blocks = std::max<std::size_t>(limit / block_bytes / owners, 1);
  rounds = (longest + round_blocks - 1) / round_blocks;
  const bool in_owner_order = rounds <= 1 && owned == layout.blocks();
  if (!in_owner_order) {
    packed = detail::allocate_aligned(owners * std::min(round_blocks, longest) * block_bytes);
    if (!packed) return false;
  }
  round_counts.resize(owners);
  return true;
}

void Exchange::State::reduce()
{
  constexpr std::size_t block_bytes = block_elements * sizeof(float);
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t begin = round * round_blocks;
    std::size_t filled = 0;
    for (std::size_t d = 0; d < round_counts.size(); ++d) {
      const auto& theirs = plan.shard(static_cast<int>(d) * slots + slot);
      const std::size_t first = std::min(begin, theirs.size());
      const std::size_t last = std::min(begin + round_blocks, theirs.size());
      round_counts[d] = static_cast<int>((last - first) * block_elements);
      for (std::size_t i = first; packed && i < last; ++i, ++filled) {
        std::memcpy(packed.get() + filled * block_bytes,
                    memory.segment(rank) + wire.offset(layout, theirs[i]), block_bytes);
      }
    }
    const std::byte* const from = packed ? packed.get() : memory.segment(rank);
    std::byte* const to = received.get() + std::min(begin, shard.size()) * block_bytes;
    check_mpi(
        MPI_Reduce_scatter(from, to, round_counts.data(), MPI_FLOAT, MPI_SUM, topology.data_axis()),
        "MPI_Reduce_scatter");
  }
}

void Exchange::State::close()
{
  if (nccl) nccl->close();
  contributions.close();
  weights.close();
  memory.close();
  received.reset();
  packed.reset();
}

Exchange::Exchange(const Topology& topology, const ShardPlan& plan, ExchangeOptions options)
{
  check_arguments(topology, plan, options);
  state_ = std::make_unique<State>(topology, plan, options);
}

// Freeing a window is collective, and a message may still be under way if an MPI call has failed.
Exchange::~Exchange()
{
  if (state_)
    detail::report_left_open("an Exchange", "close(), or close_buffers() of its ShardedAdam,");
  static_cast<void>(state_.release());
}

void Exchange::close()
{
  if (!state_) return;
  state_->close();
  state_.reset();
}

std::byte* Exchange::contribution() const { return state_->memory.segment(state_->rank); }
std::size_t Exchange::contribution_offset(std::size_t block) const
{
  return state_->wire.offset(state_->layout, block);
}
bool Exchange::fp32_contributions() const { return state_->wire.fp32; }
bool Exchange::in_device_memory() const { return state_->place != nullptr; }
const std::vector<SumBlock>& Exchange::sum_blocks() const { return state_->blocks; }
const std::vector<const void*>& Exchange::sources() const { return state_->sources; }
const std::vector<int>& Exchange::source_rank() const { return state_->source_rank; }
const std::vector<std::uint32_t>& Exchange::unread_blocks() const { return state_->unread; }

std::vector<std::span<std::byte>> Exchange::kernel_pages() const
{
  std::vector<std::span<std::byte>> pages = state_->memory.pages();
  if (state_->received_bytes != 0 && state_->place == nullptr)
    pages.emplace_back(state_->received.get(), detail::whole_pages(state_->received_bytes));
  return pages;
}

void Exchange::enter()
{
  state_->memory.fence();
  state_->memory.barrier();
  state_->memory.fence();
}

void Exchange::exchange()
{
  State& s = *state_;
  if (s.reduces()) {
    s.reduce();
    // What a ring sends: everything but the part that ends here; it receives as much as its own
    // part times the other ranks.
    const std::size_t block_bytes = block_elements * sizeof(float);
    std::size_t owned = 0;
    for (int d = 0; d < s.topology.data_parallel(); ++d) {
      owned += s.plan.shard(d * s.slots + s.slot).size();
    }
    s.sent = (owned - s.shard.size()) * block_bytes;
    s.arrived =
        s.shard.size() * static_cast<std::size_t>(s.topology.data_parallel() - 1) * block_bytes;
    return;
  }
  s.transfer(s.contributions, contribution(), s.received.get(), contribution_tag);
  s.sent = s.contributions.bytes_sent();
  s.arrived = s.contributions.bytes_received();
}

const std::byte* Exchange::weights() const
{
  return state_->slot_weights[state_->published][state_->slot];
}
std::byte* Exchange::staged_weights() const
{
  return state_->slot_weights[1 - state_->published][state_->slot];
}

const std::vector<int>& Exchange::sharers() const { return state_->sharers; }

std::vector<void*> Exchange::weight_targets(bool in_place) const
{
  const State& s = *state_;
  std::byte* const buffer = s.slot_weights[in_place ? s.published : 1 - s.published][s.slot];
  std::vector<void*> targets;
  targets.reserve(s.shard.size());
  for (std::uint32_t block : s.shard) targets.push_back(buffer + s.layout.byte_offset(block));
  return targets;
}

void Exchange::gather(bool in_place)
{
  State& s = *state_;
  const std::vector<std::byte*>& buffers = s.slot_weights[in_place ? s.published : 1 - s.published];
  std::byte* const mine = buffers[s.slot];
  for (int other = 0; other < s.slots; ++other) {
    if (other == s.slot || buffers[other] == nullptr) continue;
    const SlotLayout& theirs = s.plan.layout(other);
    for (std::uint32_t block : s.shard) {
      if (!s.replicated(s.layout, block)) continue;
      std::memcpy(buffers[other] + theirs.byte_offset(s.same_block(s.layout, block, theirs)),
                  mine + s.layout.byte_offset(block), weights_bytes(s.layout, block));
    }
  }
  s.transfer(s.weights, mine, mine, weights_tag);
  s.sent += s.weights.bytes_sent();
  s.arrived += s.weights.bytes_received();
}

void Exchange::fence() { state_->memory.fence(); }
void Exchange::publish() noexcept { state_->published = 1 - state_->published; }
const std::string& Exchange::description() const { return state_->description; }
std::size_t Exchange::bytes_sent() const { return state_->sent; }
std::size_t Exchange::bytes_received() const { return state_->arrived; }

}  // namespace tutti
