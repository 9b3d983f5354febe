// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A checkpoint's metadata taken apart: what everybody who reads its payload looks things up in.
// Where the texts come from (a file, or a rank that read it) does not matter here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "flat_layout.hpp"
#include "format.hpp"
#include "tutti/control_state.hpp"

namespace tutti::detail {

struct Contents {
  /// Throws CheckpointError when the control state is not that of the certificate.
  Contents(std::filesystem::path path, Metadata metadata);

  const ManifestEntry& optimizer(std::size_t index) const { return manifest.optimizers[index]; }
  ArrayPlace place(std::size_t optimizer, std::size_t array) const
  {
    return metadata.places[first_array[optimizer] + array];
  }

  ArrayPlace place_of_own(std::size_t array) const
  {
    return metadata.places[metadata.places.size() - manifest.own_arrays.size() + array];
  }

  std::filesystem::path path;
  Metadata metadata;
  Manifest manifest;
  Certificate certificate;
  ControlState control;
  std::vector<FlatLayout> layouts;       ///< by optimizer
  std::vector<std::size_t> first_array;  ///< by optimizer: where its arrays' places begin
};

/// Reads and judges all metadata of a file. Throws as read_metadata does. Not collective.
Contents read_contents(const std::filesystem::path& path);

}  // namespace tutti::detail
