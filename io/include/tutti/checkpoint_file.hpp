// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A checkpoint file as a thing to look into: what it says of itself, values in their global order,
// and whether every block has its hash. For tools; a run restores (checkpoint_restore.hpp).
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint_restore.hpp"
#include "tutti/control_state.hpp"
#include "tutti/parameters.hpp"

namespace tutti {

/// Not collective, and needs no MPI. Moved-from objects may only be destroyed or assigned to.
class CheckpointFile {
 public:
  struct Optimizer {
    std::string name;
    std::vector<std::string> arrays;  ///< "master", ...
    ParameterSet parameters;          ///< gradient kinds are not in a file: identical
    std::vector<std::string> views;   ///< by parameter: the HDF5 group with its datasets
    std::size_t blocks = 0;           ///< of each array
  };

  /// Opens the file and judges its metadata. Throws DamagedCheckpoint or IoError.
  explicit CheckpointFile(const std::filesystem::path& path);
  CheckpointFile(CheckpointFile&&) noexcept;
  CheckpointFile& operator=(CheckpointFile&&) noexcept;
  ~CheckpointFile();

  const std::filesystem::path& path() const;
  std::filesystem::file_time_type time() const;  ///< of its last change; throws IoError
  std::uint32_t format_version() const;
  std::uint64_t step() const;
  std::uint64_t attempt() const;
  int ranks() const;  ///< of the run that saved
  int model_parallel() const;
  /// Clocks in the order of optimizers() and their parameters.
  const ControlState& control() const;
  const std::string& configuration() const;  ///< JSON text, as it was saved
  const std::string& control_state() const;  ///< JSON text, as it is in the file
  const std::string& certificate() const;    ///< JSON text, as it is in the file
  std::uint64_t root() const;                ///< hash of the certificate
  std::uint64_t state_digest() const;        ///< of all arrays
  const std::vector<Optimizer>& optimizers() const;
  /// The code's own arrays and scalars, which a restore fills; people find them as HDF5 datasets.
  struct Own {
    std::string name;
    ElementType type = ElementType::float64;
    std::vector<std::size_t> shape;  ///< of a scalar: empty
    std::string dataset;             ///< with the real shape
  };
  const std::vector<Own>& own() const;

  /// A file `<path>.verified` says that a full verification once found nothing, in this very file.
  bool is_marked_verified() const;
  /// A file `<path>.pin` is there: retention leaves this one alone.
  bool is_pinned() const;
  /// Best effort, never an error.
  void mark_verified() const;

  /// Elements [first, first + values.size()) of a parameter's array in global row-major order, out
  /// of blocks that were compared with their hashes. Throws DamagedCheckpoint, IoError, and
  /// InvalidArgument for a name or range that is not there.
  void read(std::string_view optimizer, std::string_view parameter, std::string_view array,
            std::uint64_t first, std::span<float> values) const;

  /// All elements of one of the code's own arrays in global row-major order, as its type lies in
  /// memory, or a scalar's value. Throws as read() does.
  std::vector<std::byte> read_own(std::string_view name) const;

  /// Blocks of all arrays of all optimizers, and of the code's own arrays.
  std::uint64_t blocks() const;
  /// What is wrong with blocks [begin, end): a line for each bad one (a hash that differs, a value
  /// that state cannot have), its dataset, block and parameter named. Throws IoError.
  std::vector<std::string> find_damage(std::uint64_t begin, std::uint64_t end) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Files of steps in `directory` by their names, the highest step first; nothing is opened. Not
/// collective. Throws IoError when the directory exists and cannot be read.
std::vector<std::filesystem::path> checkpoint_files(const std::filesystem::path& directory);

/// What a full verification found.
struct CheckpointVerification {
  std::uint64_t step = 0, root = 0;
  std::uint64_t blocks = 0;          ///< of the file, all of them compared
  std::uint64_t damaged = 0;         ///< of them
  std::vector<std::string> reasons;  ///< of the first few, in the file's order
};

/// Collective over `communicator`: compares every block of `file` (as given on rank 0) with its
/// hash, the blocks shared among the ranks; the same answer on all. One rank reads the metadata.
/// Leaves the mark of a verified file if all is well and takes an old one away if not. Throws on
/// all ranks the same: DamagedCheckpoint when the metadata is refused already, IoError.
CheckpointVerification verify_checkpoint(const std::filesystem::path& file, MPI_Comm communicator);

/// Not collective, and needs no MPI: the same by this process alone.
CheckpointVerification verify_checkpoint(const std::filesystem::path& file);

}  // namespace tutti
