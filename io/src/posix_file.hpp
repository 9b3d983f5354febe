// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Files by POSIX calls: what HDF5 does not do (exclusive creation, reservation, fsync, rename) and
// reading blocks at known offsets. Every failure is a FileError with path and errno text; nothing
// here is collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "tutti/error.hpp"

namespace tutti::detail {

/// What every function here throws: an IoError that remembers errno.
struct FileError : IoError {
  FileError(const std::string& message, int n) : IoError(message), number(n) {}
  int number;
};

class PosixFile {
 public:
  PosixFile() = default;
  static PosixFile open_to_read(const std::filesystem::path& path);
  static PosixFile open_to_write(const std::filesystem::path& path);
  /// Fails if it exists.
  static PosixFile create(const std::filesystem::path& path);
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;
  ~PosixFile();

  std::uint64_t size() const;
  /// All of it or an error; a file that ends early is one.
  void read_at(std::uint64_t offset, void* data, std::size_t bytes) const;
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes) const;
  /// Makes the file at least `end` bytes long and takes the room for [begin, end) from the file
  /// system now. Where it cannot be asked for room, zeros are written, up to 64 MiB of them.
  void reserve(std::uint64_t begin, std::uint64_t end) const;
  /// Lets the disk begin with these bytes, which were written, and does not wait. Advice: without
  /// it the same happens later.
  void start_writing(std::uint64_t begin, std::uint64_t bytes) const noexcept;
  void sync() const;
  void close();

  enum class Lock { taken, busy, unknown };
  /// Takes the lock of the file (flock) for as long as it is open. Unknown: the file system has no
  /// locks.
  Lock try_lock() const;
  /// False once it was removed.
  bool has_name() const;

 private:
  PosixFile(const std::filesystem::path& path, int flags, const char* verb);
  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Creates what is missing of `directory`, and makes its name durable and those of the directories
/// above it (as far up as they can be read, in the same file system).
void make_directory(const std::filesystem::path& directory);
/// Makes creations and renames in `directory` durable.
void sync_directory(const std::filesystem::path& directory);
/// Replaces `to`.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
/// Throws if it cannot be removed; a file that is not there is fine.
void remove_file(const std::filesystem::path& path);
/// Best effort, for cleaning up.
void remove_quietly(const std::filesystem::path& path) noexcept;

/// "cannot VERB PATH (REASON, errno N); SUGGESTION"
std::string system_error_text(const char* verb, const std::filesystem::path& path, int error);

}  // namespace tutti::detail
