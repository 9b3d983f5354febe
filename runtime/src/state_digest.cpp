// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The digest of the whole optimizer state: each owned element counts once, padding never.
#include <algorithm>
#include <vector>

#include "all_or_throw.hpp"
#include "tutti/device.hpp"
#include "tutti/digest.hpp"
#include "tutti/digest_elements.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/participant.hpp"

namespace tutti {
namespace {

/// Adds the elements of one block of a piece, one run that is contiguous in the global array after
/// the other.
std::uint64_t block_part(const std::string& name, const std::string& array, const Piece& piece,
                         std::size_t block_in_piece, const float* values)
{
  const std::uint64_t seed = mix64(hash_of(name), hash_of(array));
  const std::size_t begin = block_in_piece * block_elements;
  const std::size_t end = std::min(piece.elements, begin + block_elements);
  std::uint64_t sum = 0;
  for (std::size_t i = begin; i < end;) {
    const std::size_t row_end = std::min(end, (i / piece.inner + 1) * piece.inner);
    sum += digest_elements(seed, piece.global_index(i), values + (i - begin), row_end - i);
    i = row_end;
  }
  return sum;
}

}  // namespace

std::uint64_t state_digest_part(const std::string& participant, const StateView& state, int rank,
                                const std::string& array, std::size_t in_shard, const float* values)
{
  const SlotLayout& layout = state.plan->layout(rank % state.plan->model_parallel());
  const std::uint32_t block = state.plan->shard(rank)[in_shard];
  const std::uint32_t parameter = layout.parameter_of(block);
  const Piece& piece = layout.piece(parameter);
  return block_part(participant + "/" + (*state.parameters)[parameter].name, array, piece,
                    block - piece.first_block, values);
}

std::uint64_t state_digest_part(const std::string& participant, const StateView& state, int rank)
{
  const std::size_t blocks = state.plan->shard(rank).size();
  std::vector<float> staging(state.device ? block_elements : 0);
  std::uint64_t sum = 0;
  for (const StateArray& array : state.arrays)
    for (std::size_t i = 0; i < blocks; ++i) {
      const float* values = array.data + i * block_elements;
      if (state.device) {
        state.device->copy(staging.data(), values, block_elements * sizeof(float));
        values = staging.data();
      }
      sum += state_digest_part(participant, state, rank, array.name, i, values);
    }
  return sum;
}

std::uint64_t state_digest(std::span<Participant* const> participants, MPI_Comm communicator)
{
  int rank = 0;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  std::uint64_t sum = 0;
  detail::all_or_throw<DeviceError>(communicator, [&] {
    for (Participant* participant : participants)
      sum += state_digest_part(participant->name(), participant->state(), rank);
  });
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UINT64_T, MPI_SUM, communicator),
            "MPI_Allreduce of the state digest");
  return sum;
}

}  // namespace tutti
