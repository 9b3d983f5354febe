// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Saving: one HDF5 file a committed boundary, written by all ranks, at once or in the background.
// The file's layout is described in io/README.md; HDF5 itself stays behind this header.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/coordinator.hpp"
#include "tutti/own_arrays.hpp"

namespace tutti {

/// The version of the file format that is written; older ones are read, newer ones are refused.
inline constexpr std::uint32_t checkpoint_format_version = 1;

/// How each rank's blocks reach the file; the payload is the same, byte for byte.
enum class CheckpointIo : std::uint8_t {
  mpiio,     ///< MPI-IO, independent writes
  skeleton,  ///< pwrite at the datasets' offsets, without MPI or HDF5
};

struct CheckpointOptions {
  /// The run's configuration as JSON text, given back by `restore_checkpoint`. Equal on all ranks.
  std::string configuration = "{}";
  CheckpointIo io = CheckpointIo::mpiio;
  /// After a save, only so many complete checkpoints stay in the directory; 0: all. The newest one
  /// that was verified and those with a file `<name>.pin` beside them always stay.
  std::uint64_t keep = 0;
  /// The code's own arrays and scalars, saved in the same file under the same certificate; they are
  /// read until the save returns (`start`: until that does). The same on all ranks.
  const OwnArrays* own = nullptr;
  /// Called on every rank as it enters each phase of a save (`Phase::save_prepare` and on; save_
  /// complete to save_retain on the rank that does it; save_payload and save_sync of a background
  /// save on its thread). What it throws is that rank's failure.
  std::function<void(Phase)> reached{};
};

/// Collective over the boundary's topology. Writes `directory`/step-<12 digits>.h5 and the pointer
/// file `directory`/latest, and returns the former. The file appears under its name only when all
/// of it is on disk; until then it has a hidden name in the same directory, and a failure leaves
/// everything that was there. A file of the same step is replaced (after a skipped attempt it holds
/// the newer control state).
///
/// Throws on all ranks the same: `InvalidArgument` for a configuration that is not JSON or
/// optimizers of one name, `CheckpointError` for state that is nonfinite, negative where it is a
/// square, or not the same on all ranks (nothing is written), `IoError` with rank, path and the
/// system's reason when some rank cannot write. The coordinator can go on after each of them.
std::filesystem::path save_checkpoint(const CommittedBoundary& boundary,
                                      const std::filesystem::path& directory,
                                      const CheckpointOptions& options = {});

/// Saves one checkpoint after the other, at once or in the background: then training goes on while
/// a thread on each rank judges, hashes and writes a copy of its shard.
///
///     if (due && !writer.in_flight()) {
///       writer.start(coordinator.boundary());
///       coordinator.track_save(writer.id(), [&] { return writer.report(); });
///     }
///     const Outcome outcome = coordinator.step(window);
///     if (outcome.save == SaveState::done || outcome.save == SaveState::failed) writer.finish();
///
/// A background save is written by pwrite, whatever `CheckpointOptions::io` says; its file has the
/// same bytes. It needs a second time the memory of the state, which is kept from save to save.
class CheckpointWriter {
 public:
  /// Not collective. `topology` must outlive it.
  CheckpointWriter(const Topology& topology, std::filesystem::path directory,
                   CheckpointOptions options = {});
  /// Ends its thread and removes the temporary file; nothing is published. Not collective.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective: `save_checkpoint`. Throws InvalidArgument, too, while another one is in flight.
  std::filesystem::path save(const CommittedBoundary& boundary);

  /// Collective: begins a background save and returns when the state has been copied and the
  /// temporary file is there; throws like `save`, but for values that state cannot have: those are
  /// found by the thread. Where MPI was started with MPI_THREAD_SINGLE (`has_threads()` is false)
  /// all is written before it returns; the rest is the same.
  void start(const CommittedBoundary& boundary);
  static bool has_threads();

  bool in_flight() const noexcept;
  /// Of the save in flight, equal on all ranks: for Coordinator::track_save. 0: none.
  std::uint64_t id() const noexcept;
  /// How this rank's part of it stands. Cheap; not collective.
  SaveReport report() const noexcept;

  /// Collective: ends the save in flight, waiting for its threads; when an Outcome has said `done`
  /// or `failed` there is nothing left to wait for. Publishes the checkpoint and returns its file,
  /// or throws what `save` would have thrown, with the temporary file removed.
  /// Older checkpoints that need not stay are then removed by a thread of rank 0.
  std::filesystem::path finish();
  /// Collective: the same for the end of a run, but waits at most `timeout`: then the save is given
  /// up on all ranks by an IoError (a thread that hangs in the file system is left to itself).
  /// Nothing if no save is in flight. Call Coordinator::forget_save() if the run goes on.
  std::optional<std::filesystem::path> drain(std::chrono::duration<double> timeout);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tutti
