// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Restoring: any checkpoint into any data- and model-parallel degree and rank weights, by name,
// verified on the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/coordinator.hpp"
#include "tutti/error.hpp"
#include "tutti/own_arrays.hpp"

namespace tutti {

/// How much of the payload is compared with its hashes. The metadata always is, all of it (texts,
/// certificate, hash tables), and a nonfinite value, a negative exp_avg_sq or an unfilled element
/// is always refused.
enum class Verify : std::uint8_t {
  full,     ///< every block that is read, and the restored state with its digest: any flipped bit
  sampled,  ///< each parameter's first and last block and 1 in 16 of the others, always the same
            ///< ones: a mixed, shifted or half-written file, but of single flipped bits 1 in 16
  off,      ///< none: only what the first line says
};

struct RestoreOptions {
  Verify verify = Verify::full;
  /// Samples of one epoch in this run; a checkpoint with another number is refused. Nothing: any.
  std::optional<std::uint64_t> epoch_samples = std::nullopt;
  /// Only parameters whose name, or "optimizer/name", matches one of these patterns (`*` any text,
  /// also '/', `?` one character, `[...]` a set); the arrays of the others are not touched and
  /// their clocks begin anew. Here and there the same parameters must match. Empty: all.
  std::vector<std::string> only = {};
  /// Only the weights, to begin a new run with: `master` is restored, `ema` becomes equal to it,
  /// all other arrays zero, and the control state that is returned is a fresh one. Only `master`
  /// must be in the file; one optimizer here takes from one there whatever their names.
  bool weights_only = false;
  /// Parameters may have another model precision than they were saved with (the arrays are fp32 all
  /// the same). Without it that is refused, moments or not.
  bool change_precision = false;
  /// The code's own arrays and scalars, filled from the file whatever the ranks' parts were when it
  /// was saved. Names, types and shapes must be those of the file. Nothing: those in the file are
  /// left alone.
  const OwnArrays* own = nullptr;
};

/// What a checkpoint holds besides the arrays.
struct RestoredControl {
  ControlState control;            ///< for Coordinator::resume; clocks in this run's order
  std::string configuration;       ///< JSON text, as it was saved
  std::uint64_t step = 0;          ///< of the checkpoint, also where `control` is a fresh one
  std::uint64_t state_digest = 0;  ///< of all the arrays in the file
  std::uint32_t format_version = 0;
  int ranks = 0, model_parallel = 0;  ///< of the run that saved
};

/// A file that is not good by itself (damaged, incomplete, of a newer version), as against one that
/// is good and of another model or other data. Another checkpoint of the same run may do.
struct DamagedCheckpoint : CheckpointError {
  using CheckpointError::CheckpointError;
};

/// A damaged one whose bytes are as they were saved: it holds values that no run may begin with.
struct IllegalState : DamagedCheckpoint {
  using DamagedCheckpoint::DamagedCheckpoint;
};

/// Collective over `topology`. Fills the arrays of all `participants` from the checkpoint `file`
/// (as given on rank 0; all ranks restore the same), calls `restored()` on each, and returns what
/// steers the run. One rank reads and judges all metadata; then each rank reads what its shard
/// needs. A complete restore that was fully verified leaves a small file `<file>.verified` if it
/// can.
///
/// Optimizers, arrays and parameters are matched by name, whatever their order; the message of a
/// refusal lists what is missing, extra or different. Throws on all ranks the same:
/// `CheckpointError` for a file of another model or other data, `DamagedCheckpoint` for one that is
/// damaged, incomplete or of a newer version (`IllegalState` if its values are what is wrong),
/// `IoError` for one that cannot be read. When it throws after the metadata was accepted, the
/// arrays are partly overwritten (each block was good, but not all are there; keeping the old ones
/// would take as much memory again): restore another checkpoint or end the run.
RestoredControl restore_checkpoint(const std::filesystem::path& file, const Topology& topology,
                                   std::span<Participant* const> participants,
                                   const RestoreOptions& options = {});

/// What restore_latest found.
struct RestoredLatest {
  std::filesystem::path file;
  RestoredControl restored;
};

/// Collective over `topology`: restores the newest checkpoint of `directory` that verifies. One
/// that does not, or cannot be read, is passed over with its reason in `refused`, on all ranks the
/// same. Nothing: there is no good one (the arrays may be partly overwritten). A good file of
/// another model is refused as by restore_checkpoint, and no older one is taken.
std::optional<RestoredLatest> restore_latest(const std::filesystem::path& directory,
                                             const Topology& topology,
                                             std::span<Participant* const> participants,
                                             const RestoreOptions& options = {},
                                             std::vector<std::string>* refused = nullptr);

/// Not collective: the configuration text that `file` was saved with. Throws CheckpointError for a
/// file that is damaged, incomplete or a newer version, IoError for one that cannot be read.
std::string checkpoint_configuration(const std::filesystem::path& file);

/// Collective over `topology`: the complete checkpoint of the highest step in `directory` (as given
/// on rank 0), or nothing. Complete: its metadata, hash tables and certificate agree; the payload
/// is verified when it is restored. `older_than`, if not empty, is a file of `directory`: only
/// those of lower steps count, as when it turned out to be damaged. The pointer file `latest` is
/// for people and scripts and decides only where no file is named after a step. `refused`, if
/// given, gets a line for every newer file that was passed over. Throws IoError on all ranks when
/// the directory exists and cannot be read.
std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& directory, const Topology& topology,
    std::vector<std::string>* refused = nullptr, const std::filesystem::path& older_than = {});

}  // namespace tutti
