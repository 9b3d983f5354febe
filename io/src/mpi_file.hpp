// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A file in which this rank writes by MPI-IO at places of its own. Not opened with the others
// together: where only one of them fails to open, Open MPI 6's OMPIO waits for ever (one rank in
// the barrier of its close, the others in that of their open), and nothing here is collective. Not
// through HDF5: Open MPI 4's OMPIO reports a failed write as a success of 0 bytes, which only the
// status of the call tells, and HDF5 does not look at it.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tutti::detail {

/// Failures are IoErrors of this rank. The destructor closes what `close()` has not, silently.
class MpiFile {
 public:
  /// To write; the file exists.
  explicit MpiFile(const std::filesystem::path& path);
  ~MpiFile();
  MpiFile(const MpiFile&) = delete;
  MpiFile& operator=(const MpiFile&) = delete;
  /// All of it or an error.
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes) const;
  void close();

 private:
  [[noreturn]] void fail(const char* verb, const std::string& reason) const;
  std::filesystem::path path_;
  MPI_File file_ = MPI_FILE_NULL;
};

}  // namespace tutti::detail
