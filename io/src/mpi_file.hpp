// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A file that all ranks opened together by MPI-IO, in which each writes at places of its own. Not
// through HDF5: Open MPI 4's OMPIO reports a failed write as a success of 0 bytes, which only the
// status of the call tells, and HDF5 does not look at it.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tutti::detail {

/// Failures are IoErrors of this rank. The destructor never closes: only `close()` does, and it is
/// collective.
class MpiFile {
 public:
  MpiFile() = default;
  MpiFile(const MpiFile&) = delete;
  MpiFile& operator=(const MpiFile&) = delete;
  /// Collective over `communicator`, to write; the file exists.
  void open(const std::filesystem::path& path, MPI_Comm communicator);
  /// Independent; all of it or an error.
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes) const;
  /// Collective.
  void close();

 private:
  [[noreturn]] void fail(const char* verb, const std::string& reason) const;
  MPI_File file_ = MPI_FILE_NULL;
  std::filesystem::path path_;
};

}  // namespace tutti::detail
