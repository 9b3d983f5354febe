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

namespace tutti {

/// The version of the file format that is written; older ones are read, newer ones are refused.
inline constexpr std::uint32_t checkpoint_format_version = 1;

/// How each rank's blocks reach the file; the payload is the same, byte for byte.
enum class CheckpointIo : std::uint8_t {
  mpiio,     ///< parallel HDF5, independent writes
  skeleton,  ///< pwrite at the datasets' offsets, without MPI or HDF5
};

struct CheckpointOptions {
  /// The run's configuration as JSON text, given back by `restore_checkpoint`. Equal on all ranks.
  std::string configuration = "{}";
  CheckpointIo io = CheckpointIo::mpiio;
  /// After a save, only so many complete checkpoints stay in the directory; 0: all. The newest one
  /// that was verified and those with a file `<name>.pin` beside them always stay.
  std::uint64_t keep = 0;
  /// Called on every rank as it enters each phase of a save (`Phase::save_prepare` and on; save_
  /// complete to save_retain on the rank that does it). What it throws is that rank's failure.
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

}  // namespace tutti
