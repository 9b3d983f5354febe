// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Indexed datatypes over a buffer, so that MPI gathers and scatters the runs and nothing is packed
// here.
#include "message_set.hpp"

#include "tutti/mpi_check.hpp"

namespace tutti::detail {

void MessageSet::append(std::size_t offset, std::size_t bytes, std::uint64_t place)
{
  if (part_bytes_ > 0 && part_bytes_ + bytes > message_bytes_) finish_part();
  if (part_bytes_ > 0 && place == next_place_)
    runs_.back().bytes += bytes;
  else
    runs_.push_back({offset, bytes});
  next_place_ = place + 1;
  part_bytes_ += bytes;
}

void MessageSet::finish_part()
{
  std::vector<int> lengths;
  std::vector<MPI_Aint> offsets;
  for (std::size_t r = first_run_; r < runs_.size(); ++r) {
    lengths.push_back(static_cast<int>(runs_[r].bytes));
    offsets.push_back(static_cast<MPI_Aint>(runs_[r].offset));
  }
  // Listed before it is made, so that close() knows it whatever happens.
  Part& part = parts_.emplace_back(Part{MPI_DATATYPE_NULL, part_bytes_, first_run_, runs_.size()});
  check_mpi(MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                     offsets.data(), MPI_BYTE, &part.type),
            "MPI_Type_create_hindexed");
  check_mpi(MPI_Type_commit(&part.type), "MPI_Type_commit");
  first_run_ = runs_.size();
  part_bytes_ = 0;
}

MessageSet::Sequence MessageSet::finish()
{
  if (part_bytes_ > 0) finish_part();
  const Sequence sequence{first_part_, parts_.size()};
  first_part_ = parts_.size();
  return sequence;
}

void MessageSet::add(std::vector<Message>& messages, int peer, Sequence sequence)
{
  for (std::size_t part = sequence.first; part < sequence.last; ++part) {
    messages.push_back({peer, part});
  }
}

void MessageSet::transfer(MPI_Comm communicator, const std::byte* from, std::byte* to, int tag)
{
  requests_.clear();
  // Receives first: what arrives early then needs no buffer of MPI's. Messages of one pair keep
  // their order, so one tag is enough for all parts.
  for (const Message& message : receives_) {
    requests_.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Irecv(to, 1, parts_[message.part].type, message.peer, tag, communicator,
                        &requests_.back()),
              "MPI_Irecv");
  }
  for (const Message& message : sends_) {
    requests_.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(from, 1, parts_[message.part].type, message.peer, tag, communicator,
                        &requests_.back()),
              "MPI_Isend");
  }
  check_mpi(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
            "MPI_Waitall");
}

std::size_t MessageSet::bytes_of(const std::vector<Message>& messages) const
{
  std::size_t bytes = 0;
  for (const Message& message : messages) bytes += parts_[message.part].bytes;
  return bytes;
}

std::size_t MessageSet::bytes_sent() const { return bytes_of(sends_); }
std::size_t MessageSet::bytes_received() const { return bytes_of(receives_); }

void MessageSet::close()
{
  for (Part& part : parts_) {
    if (part.type != MPI_DATATYPE_NULL) check_mpi(MPI_Type_free(&part.type), "MPI_Type_free");
  }
  parts_.clear();
  runs_.clear();
  sends_.clear();
  receives_.clear();
}

}  // namespace tutti::detail
