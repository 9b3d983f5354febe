// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Records what this process does to the files of one directory. The executable that links
// crash_recorder.cpp has its own open, pwrite, fsync, rename, ...: the dynamic linker gives them to
// all libraries (HDF5, both MPI-IO components), whose plug-ins are found the same way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::test {

enum class OperationKind : std::uint8_t {
  create,          ///< of a file
  write,           ///< of `bytes` at `offset`
  truncate,        ///< to `offset` bytes
  extend,          ///< to at least `offset` bytes (fallocate)
  sync,            ///< of a file
  make_directory,  ///< `path`
  rename,          ///< from `path` to `to`
  remove,          ///< of the name `path`
  sync_directory,  ///< `path`
};

struct Operation {
  OperationKind kind = OperationKind::write;
  int process = 0;
  std::uint64_t begin = 0, end = 0;  ///< ticks of one clock of all processes
  std::uint64_t inode = 0;           ///< of the file
  std::uint64_t offset = 0;
  std::string path, to, bytes;
};

/// From now on what happens to files in `directory` (absolute) is recorded, as done by `process`.
/// `clock` is in memory that all recorded processes share.
void start_recording(std::string directory, int process, std::atomic<std::uint64_t>* clock);
/// Ends it: the operations that succeeded, in no particular order.
std::vector<Operation> stop_recording();

}  // namespace tutti::test
