// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The MPI transport: each ballot is one MPI_Allreduce of one fixed-size record of words, combined
// by one user-defined MPI_Op. The presence bits of the parameters ride behind the ballot and are
// or-ed.
#include "tutti/transport.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/mpi_check.hpp"

namespace tutti {
namespace {

/// Combines records of `*type` words each: a `Record`, then words that are or-ed.
template <class Record>
void merge_records(void* in, void* inout, int* length, MPI_Datatype* type)
{
  static_assert(std::is_trivially_copyable_v<Record>);
  int size = 0;
  MPI_Type_size(*type, &size);
  const auto bytes = static_cast<std::size_t>(size);
  for (int item = 0; item < *length; ++item) {
    const char* from = static_cast<const char*>(in) + bytes * static_cast<std::size_t>(item);
    char* to = static_cast<char*>(inout) + bytes * static_cast<std::size_t>(item);
    Record a, b;
    std::memcpy(static_cast<void*>(&a), to, sizeof(Record));
    std::memcpy(static_cast<void*>(&b), from, sizeof(Record));
    a.merge(b);
    std::memcpy(to, &a, sizeof(Record));
    for (std::size_t at = sizeof(Record); at < bytes; ++at)
      to[at] = static_cast<char>(to[at] | from[at]);
  }
}

/// A record type, its op and its buffer.
template <class Record>
class RecordReduction {
 public:
  explicit RecordReduction(std::size_t trailing_bytes)
      : buffer_(sizeof(Record) / 8 + (trailing_bytes + 7) / 8)
  {
    check_mpi(MPI_Type_contiguous(static_cast<int>(buffer_.size()), MPI_UINT64_T, &type_),
              "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
    check_mpi(MPI_Op_create(&merge_records<Record>, 1, &op_), "MPI_Op_create");
  }
  void close()
  {
    if (type_ != MPI_DATATYPE_NULL) check_mpi(MPI_Type_free(&type_), "MPI_Type_free");
    if (op_ != MPI_OP_NULL) check_mpi(MPI_Op_free(&op_), "MPI_Op_free");
  }
  unsigned char* trailing()
  {
    return reinterpret_cast<unsigned char*>(buffer_.data()) + sizeof(Record);
  }
  void reduce(Record& record, MPI_Comm communicator)
  {
    std::memcpy(buffer_.data(), &record, sizeof(Record));
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, buffer_.data(), 1, type_, op_, communicator),
              "MPI_Allreduce of a ballot");
    std::memcpy(static_cast<void*>(&record), buffer_.data(), sizeof(Record));
  }

 private:
  std::vector<std::uint64_t> buffer_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op op_ = MPI_OP_NULL;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm communicator, std::size_t parameters)
      : communicator_(communicator), ballot_((parameters + 7) / 8), confirm_(0)
  {
    check_mpi(MPI_Comm_rank(communicator, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(communicator, &size_), "MPI_Comm_size");
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void combine(Ballot& ballot, std::span<std::uint8_t> has_gradient) override
  {
    unsigned char* presence = ballot_.trailing();
    std::memset(presence, 0, (has_gradient.size() + 7) / 8);
    for (std::size_t p = 0; p < has_gradient.size(); ++p)
      if (has_gradient[p])
        presence[p / 8] = static_cast<unsigned char>(presence[p / 8] | 1u << p % 8);
    ballot_.reduce(ballot, communicator_);
    for (std::size_t p = 0; p < has_gradient.size(); ++p)
      has_gradient[p] = presence[p / 8] >> p % 8 & 1;
  }

  void combine(Confirm& confirm) override { confirm_.reduce(confirm, communicator_); }

  void gather(std::span<const std::uint64_t> mine, std::span<std::uint64_t> all) override
  {
    const int words = static_cast<int>(mine.size());
    check_mpi(MPI_Allgather(mine.data(), words, MPI_UINT64_T, all.data(), words, MPI_UINT64_T,
                            communicator_),
              "MPI_Allgather after a bad verdict");
  }

  void share(std::string& text, int root) override
  {
    constexpr int most = 1 << 24;
    int length = static_cast<int>(std::min<std::size_t>(text.size(), most));
    check_mpi(MPI_Bcast(&length, 1, MPI_INT, root, communicator_), "MPI_Bcast of a text's length");
    // By way of a buffer that is there: a rank without memory for the text must take part as well.
    std::array<char, 8192> piece;
    std::string received;
    bool lacking = false;
    for (int at = 0; at < length; at += static_cast<int>(piece.size())) {
      const int count = std::min(length - at, static_cast<int>(piece.size()));
      if (rank_ == root)
        text.copy(piece.data(), static_cast<std::size_t>(count), static_cast<std::size_t>(at));
      check_mpi(MPI_Bcast(piece.data(), count, MPI_CHAR, root, communicator_),
                "MPI_Bcast of what one rank knows of a bad verdict");
      try {
        if (rank_ != root && !lacking)
          received.append(piece.data(), static_cast<std::size_t>(count));
      } catch (const std::bad_alloc&) {
        lacking = true;
      }
    }
    if (lacking) received.clear();
    if (rank_ != root) text = std::move(received);
  }

  void close() override
  {
    ballot_.close();
    confirm_.close();
  }

 private:
  MPI_Comm communicator_;
  int rank_ = 0, size_ = 1;
  RecordReduction<Ballot> ballot_;
  RecordReduction<Confirm> confirm_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(MPI_Comm communicator, std::size_t parameters)
{
  return std::make_unique<MpiTransport>(communicator, parameters);
}

}  // namespace tutti
