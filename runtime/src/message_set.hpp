// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A fixed pattern of messages between two buffers, made once and sent every step. Which bytes must
// travel to whom is the exchange's knowledge.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::detail {

/// A sequence of blocks becomes messages of at most `message_bytes` (a block is never cut). Both
/// sides build theirs from the same sequence, so that they cut it alike: into messages, and these
/// into runs of blocks at consecutive places. No call is collective but the exchange of data in
/// `transfer`.
class MessageSet {
 public:
  explicit MessageSet(std::size_t message_bytes) : message_bytes_(message_bytes) {}

  /// Messages that may go to, or come from, several peers.
  struct Sequence {
    std::size_t first = 0, last = 0;
    bool empty() const { return first == last; }
  };
  /// The next block of the sequence under construction lies at `offset` of the buffer. `place` is
  /// its number to both sides: where two follow each other, so do the bytes in both buffers.
  void append(std::size_t offset, std::size_t bytes, std::uint64_t place);
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

  /// Consecutive bytes of a message.
  struct Run {
    std::size_t offset = 0, bytes = 0;
  };
  /// Calls `action(peer, run)` for all that is sent, and that is received, to and from each peer in
  /// the same order on both sides.
  template <class Action>
  void for_each_sent(const Action& action) const
  {
    for_each(sends_, action);
  }
  template <class Action>
  void for_each_received(const Action& action) const
  {
    for_each(receives_, action);
  }

  /// Frees the datatypes. Local; without it they are leaked.
  void close();

 private:
  struct Part {
    MPI_Datatype type;
    std::size_t bytes;
    std::size_t first_run, last_run;
  };
  struct Message {
    int peer;
    std::size_t part;
  };
  void add(std::vector<Message>& messages, int peer, Sequence sequence);
  void finish_part();
  template <class Action>
  void for_each(const std::vector<Message>& messages, const Action& action) const
  {
    for (const Message& message : messages)
      for (std::size_t r = parts_[message.part].first_run; r < parts_[message.part].last_run; ++r)
        action(message.peer, runs_[r]);
  }
  std::size_t bytes_of(const std::vector<Message>& messages) const;

  std::size_t message_bytes_;
  std::vector<Part> parts_;
  std::vector<Message> sends_, receives_;
  std::vector<MPI_Request> requests_;
  std::vector<Run> runs_;  ///< of all parts, and of the one under construction
  // The sequence under construction, and its last part.
  std::size_t first_part_ = 0, first_run_ = 0, part_bytes_ = 0;
  std::uint64_t next_place_ = 0;
};

}  // namespace tutti::detail
