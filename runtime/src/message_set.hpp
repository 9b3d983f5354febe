// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A fixed pattern of messages between two buffers, made once and sent every step. Which bytes must
// travel to whom is the exchange's knowledge.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

namespace tutti::detail {

/// A sequence of blocks becomes messages of at most `message_bytes` (a block is never cut); both
/// sides build theirs from the same sequence, so that they cut it alike. Adjacent blocks of a
/// message are one run. No call is collective but the exchange of data in `transfer`.
class MessageSet {
 public:
  explicit MessageSet(std::size_t message_bytes) : message_bytes_(message_bytes) {}

  /// Messages that may go to, or come from, several peers.
  struct Sequence {
    std::size_t first = 0, last = 0;
    bool empty() const { return first == last; }
  };
  /// The next block of the sequence under construction lies at `offset` of the buffer.
  void append(std::size_t offset, std::size_t bytes);
  /// Ends the sequence under construction.
  Sequence finish();

  void send(int peer, Sequence sequence) { add(sends_, peer, sequence); }
  void receive(int peer, Sequence sequence) { add(receives_, peer, sequence); }
  /// Reserves what `transfer` needs, after the last `send` and `receive`.
  void commit() { requests_.reserve(sends_.size() + receives_.size()); }

  /// Sends from one buffer and receives into another (or the same, if no byte is both); complete on
  /// return.
  void transfer(MPI_Comm communicator, const std::byte* from, std::byte* to, int tag);
  std::size_t bytes_sent() const;
  std::size_t bytes_received() const;
  std::size_t messages_sent() const { return sends_.size(); }

  /// Frees the datatypes. Local; without it they are leaked.
  void close();

 private:
  struct Part {
    MPI_Datatype type;
    std::size_t bytes;
  };
  struct Message {
    int peer;
    std::size_t part;
  };
  void add(std::vector<Message>& messages, int peer, Sequence sequence);
  void finish_part();
  std::size_t bytes_of(const std::vector<Message>& messages) const;

  std::size_t message_bytes_;
  std::vector<Part> parts_;
  std::vector<Message> sends_, receives_;
  std::vector<MPI_Request> requests_;
  // The sequence under construction, and its last part's runs.
  std::size_t first_part_ = 0;
  std::size_t part_bytes_ = 0;
  std::vector<MPI_Aint> run_offset_;
  std::vector<int> run_bytes_;
};

}  // namespace tutti::detail
