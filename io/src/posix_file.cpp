// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Loops over short transfers and interrupted calls, and words for errno.
#include "posix_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

namespace tutti::detail {
namespace {

/// One call moves at most this much: Linux itself stops short of 2 GiB.
constexpr std::size_t most_bytes = std::size_t{1} << 30;

const char* suggestion(int error)
{
  switch (error) {
    case ENOSPC:
      return "free space there";
    case EDQUOT:
      return "free some of the quota there";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f)";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a directory that can be written, or mend its permissions";
    case ENOENT:
      return "check the path";
    case ENOTDIR:
    case EEXIST:
      return "choose another path";
    default:
      return "check the file system";
  }
}

[[noreturn]] void fail(const char* verb, const std::filesystem::path& path, int error)
{
  throw FileError(system_error_text(verb, path, error), error);
}

template <class Call>
auto retried(Call call)
{
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

std::string system_error_text(const char* verb, const std::filesystem::path& path, int error)
{
  return fmt::format("cannot {} {} ({}, errno {}); {}", verb, path.string(),
                     std::generic_category().message(error), error, suggestion(error));
}

PosixFile::PosixFile(const std::filesystem::path& path, int flags, const char* verb) : path_(path)
{
  descriptor_ = retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (descriptor_ < 0) fail(verb, path, errno);
}

PosixFile PosixFile::open_to_read(const std::filesystem::path& path)
{
  PosixFile file(path, O_RDONLY | O_NONBLOCK, "open");  // a pipe would wait for a writer
  struct stat status = {};
  if (::fstat(file.descriptor_, &status) != 0) fail("look at", path, errno);
  if (!S_ISREG(status.st_mode))
    throw IoError(
        fmt::format("cannot read {} (it is no plain file); choose another path", path.string()));
  return file;
}
PosixFile PosixFile::open_to_write(const std::filesystem::path& path)
{
  return {path, O_RDWR, "open for writing"};
}
PosixFile PosixFile::create(const std::filesystem::path& path)
{
  return {path, O_RDWR | O_CREAT | O_EXCL, "create"};
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_))
{
}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept
{
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

PosixFile::~PosixFile()
{
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t PosixFile::size() const
{
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail("look at", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void PosixFile::read_at(std::uint64_t offset, void* data, std::size_t bytes) const
{
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = retried([&] {
      return ::pread(descriptor_, to, std::min(bytes, most_bytes), static_cast<off_t>(offset));
    });
    if (got < 0) fail("read", path_, errno);
    if (got == 0)
      throw FileError(fmt::format("cannot read {} (it ends at byte {} of at least {}); it was cut",
                                  path_.string(), offset, offset + bytes),
                      0);
    to += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void PosixFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) const
{
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = retried([&] {
      return ::pwrite(descriptor_, from, std::min(bytes, most_bytes), static_cast<off_t>(offset));
    });
    if (put < 0) fail("write", path_, errno);
    from += put;
    offset += static_cast<std::uint64_t>(put);
    bytes -= static_cast<std::size_t>(put);
  }
}

void PosixFile::reserve(std::uint64_t begin, std::uint64_t end) const
{
  if (begin >= end) return;
  if (end > size() &&
      retried([&] { return ::ftruncate(descriptor_, static_cast<off_t>(end)); }) != 0)
    fail("reserve room for", path_, errno);
#ifdef __linux__
  if (retried([&] {
        return ::fallocate(descriptor_, 0, static_cast<off_t>(begin),
                           static_cast<off_t>(end - begin));
      }) == 0)
    return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail("reserve room for", path_, errno);
#endif
  const std::vector<std::byte> zeros(std::size_t{1} << 20);
  end = std::min(end, begin + (std::uint64_t{64} << 20));
  for (; begin < end; begin += zeros.size())
    write_at(begin, zeros.data(), std::min<std::uint64_t>(zeros.size(), end - begin));
}

void PosixFile::start_writing(std::uint64_t begin, std::uint64_t bytes) const noexcept
{
#ifdef __linux__
  ::sync_file_range(descriptor_, static_cast<off64_t>(begin), static_cast<off64_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
#endif
}

void PosixFile::sync() const
{
  if (retried([&] { return ::fsync(descriptor_); }) != 0) fail("sync", path_, errno);
}

void PosixFile::close()
{
  const int descriptor = std::exchange(descriptor_, -1);
  // After EINTR the descriptor is gone on Linux, and all data was synced before.
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) fail("close", path_, errno);
}

PosixFile::Lock PosixFile::try_lock() const
{
  if (retried([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0) return Lock::taken;
  return errno == EWOULDBLOCK ? Lock::busy : Lock::unknown;
}

bool PosixFile::has_name() const
{
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail("look at", path_, errno);
  return status.st_nlink > 0;
}

void sync_directory(const std::filesystem::path& directory)
{
  const int descriptor =
      retried([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) fail("open", directory, errno);
  const int result = retried([&] { return ::fsync(descriptor); });
  const int error = errno;
  ::close(descriptor);
  // Some network file systems do not sync directories: their renames are durable by themselves.
  if (result != 0 && error != EINVAL) fail("sync", directory, error);
}

void make_directory(const std::filesystem::path& directory)
{
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail("create directory", directory, error.value());
  // Older standard libraries take a file of that name for a directory that exists.
  if (!std::filesystem::is_directory(directory, error))
    fail("create directory", directory, error ? error.value() : ENOTDIR);

  // It may be new, and those above it, made here or by the caller a moment ago: a crash that takes
  // one of their names takes all checkpoints. A mount point's name is not this file system's.
  struct stat here = {}, above = {};
  std::filesystem::path path = std::filesystem::absolute(directory, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  for (; path.has_relative_path(); path = path.parent_path()) {
    if (::stat(path.c_str(), &here) != 0 || ::stat(path.parent_path().c_str(), &above) != 0 ||
        here.st_dev != above.st_dev || ::access(path.parent_path().c_str(), R_OK) != 0)
      return;
    sync_directory(path.parent_path());
  }
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to)
{
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename a new checkpoint to", to, errno);
}

void remove_file(const std::filesystem::path& path)
{
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("remove", path, errno);
}

void remove_quietly(const std::filesystem::path& path) noexcept
{
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

}  // namespace tutti::detail
