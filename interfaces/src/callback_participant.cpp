// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What stands between the coordinator and a code's callbacks: a code that is not 0 becomes the
// failure of this rank, values that are shown become votes, and arrays of the caller become blocks
// for checkpoints and back.
#include "callback_participant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tutti/digest.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"
#include "values.hpp"

namespace tutti::c {
namespace {

/// Calls a callback if it is there. Nothing may leave it: the others would wait.
template <class Function, class... Arguments>
int call(Function* function, Arguments... arguments) noexcept
{
  return function == nullptr ? 0 : function(arguments...);
}

}  // namespace

CallbackParticipant::CallbackParticipant(const Topology& topology, std::string name,
                                         ParameterSet parameters, const tutti_callbacks& callbacks,
                                         std::vector<BoundArray> arrays, Device* copier)
    : topology_(topology),
      name_(std::move(name)),
      parameters_(std::move(parameters)),
      plan_(parameters_, topology.data_parallel(), topology.model_parallel()),
      layout_(plan_.layout(topology.model_rank())),
      shard_(plan_.shard(topology.rank())),
      callbacks_(callbacks),
      arrays_(std::move(arrays)),
      copier_(copier),
      host_(make_host_device())
{
  for (std::size_t a = 0; a < arrays_.size(); ++a)
    blocks_.emplace_back(shard_.size() * block_elements);
  shown_ = static_cast<float*>(host_->allocate(block_elements * sizeof(float)));
  sum_ = static_cast<float*>(host_->allocate(block_elements * sizeof(float)));
}

CallbackParticipant::~CallbackParticipant()
{
  host_->deallocate(shown_);
  host_->deallocate(sum_);
}

std::uint64_t CallbackParticipant::configuration_hash() const
{
  std::uint64_t hash = mix64(hash_of(name_), parameters_.hash());
  for (const BoundArray& array : arrays_) hash = mix64(hash, hash_of(array.name));
  return hash;
}

void CallbackParticipant::check(const char* callback, int code) const
{
  if (code == 0) return;
  // The caller's own code, as with tutti_window_fail.
  throw Error(
      static_cast<ErrorCode>(code),
      fmt::format("callback {} of optimizer '{}' failed (it returned {})", callback, name_, code));
}

void CallbackParticipant::open()
{
  exchange_code_ = gather_code_ = 0;
  check("open", call(callbacks_.open, callbacks_.context));
}

void CallbackParticipant::accumulate(std::uint32_t micro)
{
  check("accumulate",
        call(callbacks_.accumulate, callbacks_.context, static_cast<std::int64_t>(micro)));
}

void CallbackParticipant::exchange()
{
  exchange_code_ = call(callbacks_.exchange, callbacks_.context);
}

void CallbackParticipant::inspect(Ballot& ballot, std::span<std::uint8_t> has_gradient)
{
  check("exchange", exchange_code_);
  tutti_inspection_s inspection{this, &ballot, has_gradient, nullptr};
  const int code = call(callbacks_.inspect, callbacks_.context, &inspection);
  if (inspection.refusal) std::rethrow_exception(inspection.refusal);
  check("inspect", code);
}

void CallbackParticipant::stage(const Update& update)
{
  gather_code_ = 0;
  std::uint64_t steps = 0;
  for (const ParameterClock& clock : update.clocks) steps = std::max(steps, clock.steps);
  const tutti_update out{static_cast<std::int64_t>(steps), update.grad_factor,
                         update.learning_rate_factor, update.has_gradient.data()};
  check("stage", call(callbacks_.stage, callbacks_.context, &out));
}

void CallbackParticipant::gather() { gather_code_ = call(callbacks_.gather, callbacks_.context); }

void CallbackParticipant::confirm(Confirm& confirm)
{
  check("gather", gather_code_);
  tutti_inspection_s inspection{this, nullptr, {}, &confirm};
  const int code = call(callbacks_.confirm, callbacks_.context, &inspection);
  if (inspection.refusal) std::rethrow_exception(inspection.refusal);
  check("confirm", code);
}

void CallbackParticipant::publish() noexcept { callbacks_.publish(callbacks_.context); }

void CallbackParticipant::discard() noexcept
{
  if (callbacks_.discard != nullptr) callbacks_.discard(callbacks_.context);
}

// --- what is shown -------------------------------------------------------------------------------

void CallbackParticipant::show(tutti_inspection_s& inspection, std::size_t parameter,
                               std::size_t first, std::size_t count, tutti_part part,
                               tutti_type type, tutti_space space, const void* values)
{
  if (parameter >= parameters_.size())
    throw InvalidArgument(
        fmt::format("there is no parameter {} (optimizer '{}' has {}); check the index", parameter,
                    name_, parameters_.size()));
  const Piece& piece = layout_.piece(parameter);
  if (first > piece.elements || count > piece.elements - first)
    throw InvalidArgument(fmt::format(
        "elements {} to {} of parameter '{}' cannot be looked at (this rank holds {}); check first "
        "and count",
        first, first + count, parameters_[parameter].name, piece.elements));
  if (part < TUTTI_CONTRIBUTION || part > TUTTI_COPY)
    throw InvalidArgument(
        fmt::format("part {} is refused (there is none of that number); use one of tutti_part",
                    static_cast<int>(part)));
  const Values from{const_cast<void*>(values), type, space};
  if (count != 0) check_values(from, copier_ != nullptr);
  if (inspection.ballot != nullptr) inspection.has_gradient[parameter] = 1;
  const Stage stage = inspection.confirm != nullptr ? Stage::update
                      : part == TUTTI_CONTRIBUTION  ? Stage::micro_batch
                                                    : Stage::exchange;
  for (std::size_t done = 0; done < count; done += block_elements) {
    const std::size_t now = std::min(block_elements, count - done);
    copy_values({shown_, TUTTI_FP32, TUTTI_HOST}, from, done, now, copier_);
    std::fill(shown_ + now, shown_ + block_elements, 0.0f);
    const SumBlock block{0, 1, Precision::fp32};
    const void* const source = shown_;
    BlockScan scan;
    SumBlocks work;
    work.blocks = 1;
    work.block = &block;
    work.sources = &source;
    work.sum = sum_;
    work.scan = &scan;
    host_->sum_blocks(work);
    if (inspection.ballot != nullptr) {
      Ballot& ballot = *inspection.ballot;
      ballot.largest_finite = std::max<std::uint64_t>(ballot.largest_finite, scan.largest_finite);
      if (part == TUTTI_SUM && scan.nonfinite == 0) ballot.sum_of_squares.add(scan.sum_of_squares);
    }
    if (scan.nonfinite == 0) continue;
    Offender offender;
    offender.stage = static_cast<std::uint32_t>(stage);
    offender.micro = ~0u;
    offender.parameter = static_cast<std::uint32_t>(parameter);
    offender.element = piece.global_index(first + done + scan.first_nonfinite);
    offender.rank = static_cast<std::uint32_t>(topology_.rank());
    offender.value_bits = std::bit_cast<std::uint32_t>(shown_[scan.first_nonfinite]);
    offender.count = scan.nonfinite;
    const auto vote = [&](auto& record) {
      record.nonfinite += scan.nonfinite;
      record.offender = std::min(record.offender, offender);
    };
    if (inspection.ballot != nullptr) vote(*inspection.ballot);
    if (inspection.confirm != nullptr) vote(*inspection.confirm);
  }
}

// --- state ---------------------------------------------------------------------------------------

namespace {

/// Calls `work(parameter, first element in the piece, element in the shard, count)` for each block.
template <class Work>
void each_block(const std::vector<std::uint32_t>& shard, const SlotLayout& layout, Work&& work)
{
  for (std::size_t b = 0; b < shard.size(); ++b) {
    const std::uint32_t p = layout.parameter_of(shard[b]);
    const Piece& piece = layout.piece(p);
    const std::size_t begin = (shard[b] - piece.first_block) * block_elements;
    work(p, begin, b * block_elements, std::min(block_elements, piece.elements - begin));
  }
}

}  // namespace

void CallbackParticipant::read_caller_state()
{
  for (std::size_t a = 0; a < arrays_.size(); ++a)
    each_block(shard_, layout_,
               [&](std::size_t p, std::size_t begin, std::size_t in_shard, std::size_t count) {
                 std::copy_n(arrays_[a].values[p] + begin, count, blocks_[a].data() + in_shard);
               });
}

StateView CallbackParticipant::state()
{
  StateView view{&parameters_, &plan_, {}};
  for (std::size_t a = 0; a < arrays_.size(); ++a)
    view.arrays.push_back({arrays_[a].name, blocks_[a].data()});
  return view;
}

void CallbackParticipant::restored()
{
  for (std::size_t a = 0; a < arrays_.size(); ++a) {
    // All but the owner's blocks become zero bits, so that OR over the holders gives the owner's.
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      std::fill_n(arrays_[a].values[p], layout_.piece(p).elements, 0.0f);
    each_block(shard_, layout_,
               [&](std::size_t p, std::size_t begin, std::size_t in_shard, std::size_t count) {
                 std::copy_n(blocks_[a].data() + in_shard, count, arrays_[a].values[p] + begin);
               });
    for (std::size_t p = 0; p < parameters_.size(); ++p) spread(arrays_[a].values[p], p);
  }
  if (callbacks_.restored != nullptr) callbacks_.restored(callbacks_.context);
}

/// Collective over the ranks that hold the piece.
void CallbackParticipant::spread(float* piece, std::size_t parameter) const
{
  constexpr std::size_t at_once = std::size_t{1} << 26;
  const std::size_t elements = layout_.piece(parameter).elements;
  const MPI_Comm holders = parameters_[parameter].placement == Placement::replicated
                               ? topology_.world()
                               : topology_.data_axis();
  for (std::size_t done = 0; done < elements; done += at_once)
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, piece + done,
                            static_cast<int>(std::min(at_once, elements - done)), MPI_UINT32_T,
                            MPI_BOR, holders),
              "MPI_Allreduce of restored state");
}

}  // namespace tutti::c
