// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The steps of a save that all ranks take together. Which of them come at once and which later is
// the caller's matter; what a rank does alone in between is in payload.hpp.
#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "directory.hpp"
#include "format.hpp"
#include "payload.hpp"
#include "tutti/checkpoint_save.hpp"

namespace tutti::detail {

/// One save. Every function but discard() is collective over the boundary's topology and fails on
/// all ranks with the same error; then all ranks call discard().
class Save {
 public:
  Save(const CommittedBoundary& boundary, std::filesystem::path directory,
       const CheckpointOptions& options);

  /// Looks at what is to be saved and agrees on it. Nothing is written yet.
  void prepare();
  /// The arrays are copied, into the memory of the payload of an earlier save where there is one;
  /// the rest of the save is about the copy.
  void take_snapshot(Payload* before);
  /// Judges and hashes this rank's blocks.
  void judge();
  /// Makes the temporary file, in it the datasets; it is open on all ranks from here on.
  void create();
  /// Writes the blocks and makes them durable.
  void write();
  /// Completes the file, gives it its name, turns the pointer and removes what need not stay: now,
  /// or (`later`) on a thread of rank 0 that ends with `removal`. Waits for an earlier one.
  std::filesystem::path publish(std::future<void>& removal, bool later);
  /// Local: the temporary file goes, if it is still there.
  void discard() noexcept;

  /// This rank's part, which may be judged and written on a thread between create() and publish().
  const std::shared_ptr<Payload>& payload() const { return payload_; }
  std::uint64_t step() const { return control_.step; }
  MPI_Comm world() const { return world_; }

 private:
  void look_at_state();
  void agree();
  void look_at_own_arrays();
  void create_skeleton();
  void write_by_mpiio() const;
  void gather_hashes();
  void complete();
  void give_name();
  void turn_pointer();
  void retain(std::future<void>& removal, bool later);
  template <class Work>
  void afterwards(const char* what_failed, const Work& work) const;
  [[noreturn]] void fail(const Hdf5Failure& failure) const;

  const Topology& topology_;
  MPI_Comm world_;
  std::filesystem::path directory_, temporary_, final_;
  CheckpointOptions options_;
  ControlState control_;
  std::vector<Participant*> participants_;
  Manifest manifest_;
  Certificate certificate_;
  std::shared_ptr<Payload> payload_;
  std::vector<std::vector<std::uint64_t>> tables_;  ///< rank 0: of the whole file
  std::optional<HiddenName> hidden_;                ///< rank 0
  bool published_ = false;                          ///< rank 0
};

}  // namespace tutti::detail
