// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The C library's calls that change files, each in front of the real one. What goes around them
// (mapped memory, asynchronous I/O, raw system calls) is not seen: the test compares what was
// recorded with the directory itself.
#include "crash_recorder.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace {

using namespace tutti::test;

struct Recorder {
  std::mutex mutex;
  std::string directory;
  int process = 0;
  std::atomic<std::uint64_t>* clock = nullptr;
  std::vector<Operation> operations;
};
Recorder recorder;
std::atomic<bool> recording{false};

/// The next definition of a symbol, which is the C library's.
template <class Function>
Function* real(const char* name)
{
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define TUTTI_REAL(name) static auto* const real_##name = real<decltype(name)>(#name)

bool watched(const std::string& path)
{
  const std::string& directory = recorder.directory;
  return path.compare(0, directory.size(), directory) == 0 &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

std::string path_of(int descriptor)
{
  char buffer[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), buffer, sizeof buffer);
  return length < 0 ? std::string() : std::string(buffer, static_cast<std::size_t>(length));
}

std::string path_at(int folder, const char* path)
{
  if (path[0] == '/') return path;
  if (folder != AT_FDCWD) return path_of(folder) + "/" + path;
  char buffer[PATH_MAX];
  return getcwd(buffer, sizeof buffer) == nullptr ? path : std::string(buffer) + "/" + path;
}

/// Makes the call, and notes the operation with the ticks around it if it is `wanted` and succeeds.
/// `complete(operation, result)` fills in what is known only afterwards.
template <class Call, class Complete>
auto noted(bool wanted, Operation operation, Call call, Complete complete)
{
  if (wanted) operation.begin = recorder.clock->fetch_add(1);
  const auto result = call();
  if (!wanted || result < 0) return result;
  const int error = errno;
  complete(operation, result);
  operation.process = recorder.process;
  operation.end = recorder.clock->fetch_add(1);
  {
    const std::lock_guard<std::mutex> lock(recorder.mutex);
    recorder.operations.push_back(std::move(operation));
  }
  errno = error;
  return result;
}

constexpr auto nothing_more = [](Operation&, auto) {};

/// An operation on an open file: which one, and whether it is to be noted.
bool on_file(int descriptor, OperationKind kind, Operation& operation)
{
  if (!recording) return false;
  const int error = errno;
  struct stat status = {};
  const bool known = fstat(descriptor, &status) == 0;
  operation.kind = kind;
  operation.path = path_of(descriptor);
  operation.inode = status.st_ino;
  if (kind == OperationKind::sync && S_ISDIR(status.st_mode))
    operation.kind = OperationKind::sync_directory;
  errno = error;
  return known && watched(operation.path);
}

template <class Call>
int opened(int folder, const char* path, int flags, Call call)
{
  Operation operation;
  bool wanted = false;
  if (recording && (flags & (O_CREAT | O_TRUNC)) != 0 && path != nullptr) {
    operation.path = path_at(folder, path);
    struct stat status = {};
    const bool exists = stat(operation.path.c_str(), &status) == 0;
    operation.kind = exists ? OperationKind::truncate : OperationKind::create;
    wanted = watched(operation.path) && (!exists || (flags & O_TRUNC) != 0);
  }
  return noted(wanted, std::move(operation), call, [](Operation& made, int descriptor) {
    struct stat status = {};
    fstat(descriptor, &status);
    made.inode = status.st_ino;
  });
}

template <class Call>
ssize_t written(int descriptor, const struct iovec* parts, int count, off_t offset, Call call)
{
  Operation operation;
  const bool wanted = on_file(descriptor, OperationKind::write, operation);
  if (wanted)
    operation.offset =
        static_cast<std::uint64_t>(offset >= 0 ? offset : lseek(descriptor, 0, SEEK_CUR));
  return noted(wanted, std::move(operation), call, [&](Operation& made, ssize_t bytes) {
    for (int i = 0; i < count; ++i)
      made.bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
    made.bytes.resize(static_cast<std::size_t>(bytes));
  });
}

template <class Call>
ssize_t written(int descriptor, const void* data, std::size_t bytes, off_t offset, Call call)
{
  const struct iovec part = {const_cast<void*>(data), bytes};
  return written(descriptor, &part, 1, offset, call);
}

template <class Call>
int resized(int descriptor, OperationKind kind, off_t size, Call call)
{
  Operation operation;
  const bool wanted = on_file(descriptor, kind, operation);
  operation.offset = static_cast<std::uint64_t>(size);
  return noted(wanted, std::move(operation), call, nothing_more);
}

template <class Call>
int synced(int descriptor, Call call)
{
  Operation operation;
  const bool wanted = on_file(descriptor, OperationKind::sync, operation);
  return noted(wanted, std::move(operation), call, nothing_more);
}

template <class Call>
int named(OperationKind kind, const std::string& path, const std::string& to, Call call)
{
  Operation operation;
  operation.kind = kind;
  operation.path = path;
  operation.to = to;
  return noted(recording && watched(path), std::move(operation), call, nothing_more);
}

mode_t mode_of(int flags, va_list arguments)
{
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

namespace tutti::test {

void start_recording(std::string directory, int process, std::atomic<std::uint64_t>* clock)
{
  recorder.directory = std::move(directory);
  recorder.process = process;
  recorder.clock = clock;
  recorder.operations.clear();
  recording = true;
}

std::vector<Operation> stop_recording()
{
  recording = false;
  const std::lock_guard<std::mutex> lock(recorder.mutex);
  return std::move(recorder.operations);
}

}  // namespace tutti::test

// --- the calls -----------------------------------------------------------------------------------

#pragma GCC visibility push(default)
extern "C" {

#define TUTTI_OPEN(name)                                                                  \
  int name(const char* path, int flags, ...)                                              \
  {                                                                                       \
    TUTTI_REAL(name);                                                                     \
    va_list arguments;                                                                    \
    va_start(arguments, flags);                                                           \
    const mode_t mode = mode_of(flags, arguments);                                        \
    va_end(arguments);                                                                    \
    return opened(AT_FDCWD, path, flags, [&] { return real_##name(path, flags, mode); }); \
  }
TUTTI_OPEN(open)
TUTTI_OPEN(open64)

#define TUTTI_OPENAT(name)                                                                      \
  int name(int folder, const char* path, int flags, ...)                                        \
  {                                                                                             \
    TUTTI_REAL(name);                                                                           \
    va_list arguments;                                                                          \
    va_start(arguments, flags);                                                                 \
    const mode_t mode = mode_of(flags, arguments);                                              \
    va_end(arguments);                                                                          \
    return opened(folder, path, flags, [&] { return real_##name(folder, path, flags, mode); }); \
  }
TUTTI_OPENAT(openat)
TUTTI_OPENAT(openat64)

#define TUTTI_CREAT(name)                                       \
  int name(const char* path, mode_t mode)                       \
  {                                                             \
    TUTTI_REAL(name);                                           \
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, \
                  [&] { return real_##name(path, mode); });     \
  }
TUTTI_CREAT(creat)
TUTTI_CREAT(creat64)

ssize_t write(int descriptor, const void* data, std::size_t bytes)
{
  TUTTI_REAL(write);
  return written(descriptor, data, bytes, -1, [&] { return real_write(descriptor, data, bytes); });
}

ssize_t writev(int descriptor, const struct iovec* parts, int count)
{
  TUTTI_REAL(writev);
  return written(descriptor, parts, count, -1,
                 [&] { return real_writev(descriptor, parts, count); });
}

#define TUTTI_PWRITE(name)                                                        \
  ssize_t name(int descriptor, const void* data, std::size_t bytes, off_t offset) \
  {                                                                               \
    TUTTI_REAL(name);                                                             \
    return written(descriptor, data, bytes, offset,                               \
                   [&] { return real_##name(descriptor, data, bytes, offset); }); \
  }
TUTTI_PWRITE(pwrite)
TUTTI_PWRITE(pwrite64)

#define TUTTI_PWRITEV(name)                                                        \
  ssize_t name(int descriptor, const struct iovec* parts, int count, off_t offset) \
  {                                                                                \
    TUTTI_REAL(name);                                                              \
    return written(descriptor, parts, count, offset,                               \
                   [&] { return real_##name(descriptor, parts, count, offset); }); \
  }
TUTTI_PWRITEV(pwritev)
TUTTI_PWRITEV(pwritev64)

#define TUTTI_FTRUNCATE(name)                                      \
  int name(int descriptor, off_t size)                             \
  {                                                                \
    TUTTI_REAL(name);                                              \
    return resized(descriptor, OperationKind::truncate, size,      \
                   [&] { return real_##name(descriptor, size); }); \
  }
TUTTI_FTRUNCATE(ftruncate)
TUTTI_FTRUNCATE(ftruncate64)

#define TUTTI_FALLOCATE(name)                                                          \
  int name(int descriptor, int mode, off_t offset, off_t length)                       \
  {                                                                                    \
    TUTTI_REAL(name);                                                                  \
    return resized(descriptor, OperationKind::extend, mode == 0 ? offset + length : 0, \
                   [&] { return real_##name(descriptor, mode, offset, length); });     \
  }
TUTTI_FALLOCATE(fallocate)
TUTTI_FALLOCATE(fallocate64)

#define TUTTI_SYNC(name)                                                \
  int name(int descriptor)                                              \
  {                                                                     \
    TUTTI_REAL(name);                                                   \
    return synced(descriptor, [&] { return real_##name(descriptor); }); \
  }
TUTTI_SYNC(fsync)
TUTTI_SYNC(fdatasync)

int mkdir(const char* path, mode_t mode)
{
  TUTTI_REAL(mkdir);
  return named(OperationKind::make_directory, path_at(AT_FDCWD, path), "",
               [&] { return real_mkdir(path, mode); });
}

int rename(const char* from, const char* to) noexcept
{
  TUTTI_REAL(rename);
  return named(OperationKind::rename, path_at(AT_FDCWD, from), path_at(AT_FDCWD, to),
               [&] { return real_rename(from, to); });
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept
{
  TUTTI_REAL(renameat);
  return named(OperationKind::rename, path_at(from_folder, from), path_at(to_folder, to),
               [&] { return real_renameat(from_folder, from, to_folder, to); });
}

int unlink(const char* path) noexcept
{
  TUTTI_REAL(unlink);
  return named(OperationKind::remove, path_at(AT_FDCWD, path), "",
               [&] { return real_unlink(path); });
}

int unlinkat(int folder, const char* path, int flags) noexcept
{
  TUTTI_REAL(unlinkat);
  return named(OperationKind::remove, path_at(folder, path), "",
               [&] { return real_unlinkat(folder, path, flags); });
}

int remove(const char* path) noexcept
{
  TUTTI_REAL(remove);
  return named(OperationKind::remove, path_at(AT_FDCWD, path), "",
               [&] { return real_remove(path); });
}

}  // extern "C"
#pragma GCC visibility pop
