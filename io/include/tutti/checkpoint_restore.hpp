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

namespace tutti {

enum class Verify : std::uint8_t {
  full,  ///< every block that is read against its hash, and the restored state against its digest
  off,   ///< the tables only; nonfinite values and unfilled elements are still refused
};

struct RestoreOptions {
  Verify verify = Verify::full;
  /// Samples of one epoch in this run; a checkpoint with another number is refused. Nothing: any.
  std::optional<std::uint64_t> epoch_samples = std::nullopt;
};

/// What a checkpoint holds besides the arrays.
struct RestoredControl {
  ControlState control;            ///< for Coordinator::resume; clocks in this run's order
  std::string configuration;       ///< JSON text, as it was saved
  std::uint64_t state_digest = 0;  ///< of the restored arrays, as it was when they were saved
  std::uint32_t format_version = 0;
  int ranks = 0, model_parallel = 0;  ///< of the run that saved
};

/// Collective over `topology`. Fills the arrays of all `participants` from the checkpoint `file`
/// (as given on rank 0; all ranks restore the same), calls `restored()` on each, and returns what
/// steers the run. One rank reads and judges all metadata; then each rank reads what its shard
/// needs.
///
/// Optimizers, arrays and parameters are matched by name, whatever their order; the message of a
/// refusal lists what is missing, extra or different. Throws on all ranks the same:
/// `CheckpointError` for a file that is damaged, incomplete, of another model or a newer version,
/// `IoError` for one that cannot be read. When it throws after the metadata was accepted, the
/// arrays are partly overwritten: restore another checkpoint or end the run.
RestoredControl restore_checkpoint(const std::filesystem::path& file, const Topology& topology,
                                   std::span<Participant* const> participants,
                                   const RestoreOptions& options = {});

/// Not collective: the configuration text that `file` was saved with. Throws CheckpointError for a
/// file that is damaged, incomplete or a newer version, IoError for one that cannot be read.
std::string checkpoint_configuration(const std::filesystem::path& file);

/// Collective over `topology`: the complete checkpoint of the highest step in `directory` (as given
/// on rank 0), or nothing. Complete: its metadata, hash tables and certificate agree; the payload
/// is verified when it is restored. The pointer file `latest` is for people and scripts and decides
/// only where no file is named after a step. `refused`, if given, gets a line for every newer file
/// that was passed over. Throws IoError on all ranks when the directory exists and cannot be read.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& directory,
                                                       const Topology& topology,
                                                       std::vector<std::string>* refused = nullptr);

}  // namespace tutti
