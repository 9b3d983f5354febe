// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a checkpoint file says about itself: manifest, certificate, hash tables, and the names of
// its datasets. Writing and judging the metadata is here, moving the payload is save.cpp and
// restore.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hdf5.hpp"
#include "own_layout.hpp"
#include "tutti/block.hpp"
#include "tutti/parameters.hpp"

namespace tutti::detail {

/// XXH3-64 of bytes, of a text and of one block.
std::uint64_t hash_bytes(const void* data, std::size_t bytes);
inline std::uint64_t hash_text(const std::string& text)
{
  return hash_bytes(text.data(), text.size());
}
inline std::uint64_t hash_block(const float* block) { return hash_bytes(block, block_bytes); }

/// One optimizer's entry: everything that is needed to find its elements.
struct ManifestEntry {
  std::string name;
  std::string group;                ///< of its flat arrays
  std::vector<std::string> arrays;  ///< "master", ...
  ParameterSet parameters;
  std::vector<std::string> views;  ///< by parameter: the group of its virtual datasets
  std::size_t blocks = 0;

  std::string data_path(const std::string& array) const { return group + "/" + array; }
  std::string hash_path(const std::string& array) const { return group + "/hashes/" + array; }
};

struct Manifest {
  int ranks = 1, model_parallel = 1;
  std::vector<ManifestEntry> optimizers;
  std::vector<OwnArrayEntry> own_arrays;    ///< of the code that saved
  std::vector<OwnScalarEntry> own_scalars;  ///< likewise; in the file's group /scalars for people
};

/// Gives every optimizer and parameter a place in the file: its name where HDF5 can have it, a
/// close one otherwise ('.' and control characters become '_', a name that is taken gets "~2").
void assign_paths(Manifest& manifest);

std::string to_json(const Manifest& manifest);
/// Throws CheckpointError.
Manifest manifest_from_json(const std::string& text);

/// What all ranks had agreed on when the file was made, and the hashes of everything in it.
struct Certificate {
  std::uint64_t step = 0, attempt = 0;
  std::uint64_t control_digest = 0, ledger_digest = 0, configuration_hash = 0, state_digest = 0;
  std::uint64_t manifest = 0, control_state = 0, configuration = 0;  ///< hashes of the texts
  std::vector<std::uint64_t> tables;  ///< of the hash tables, in the manifest's order
  std::uint64_t root = 0;             ///< hash of all this; set by certificate_from_json
};

/// The text carries its own hash.
std::string to_json(const Certificate& certificate);
/// Throws CheckpointError if the text is not what was written.
Certificate certificate_from_json(const std::string& text);

/// How elements lie in the file.
hid_t hdf5_type(ElementType type);

/// The places of one array in the file.
struct ArrayPlace {
  std::uint64_t data = 0, hashes = 0;
};

/// Everything in a checkpoint but its payload.
struct Metadata {
  std::uint32_t format_version = 0;
  std::string manifest, control_state, configuration, certificate;  ///< texts
  std::vector<ArrayPlace>
      places;  ///< by optimizer and array, then of own arrays, in the manifest's order
};

/// Bytes that are more than enough for the flat arrays, and for everything that write_metadata
/// adds.
std::uint64_t room_for_payload(const Manifest& manifest);
std::uint64_t room_for_metadata(const Manifest& manifest, const Metadata& metadata);

/// Rank zero's last word in a file whose payload is complete. `tables`: block hashes in the order
/// of `Metadata::places`. Throws Hdf5Failure.
void write_metadata(const std::filesystem::path& path, const Manifest& manifest,
                    const Metadata& metadata,
                    const std::vector<std::vector<std::uint64_t>>& tables);

/// Opens, reads and judges: version, completeness, every hash but those of the payload. Throws
/// CheckpointError, or IoError for a file that the system does not give. Not collective.
Metadata read_metadata(const std::filesystem::path& path);

}  // namespace tutti::detail
