// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a file system can answer to one rank in the middle of a save (EIO, EDQUOT, EACCES, ENOSPC):
// the calls of this very program are answered so. One error with rank, path and errno on all
// ranks; the earlier checkpoint is whole, nothing else is left, and the next save works.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <string_view>
#include <system_error>

#include "shelf.hpp"

namespace {

enum class Call { none, open, open_again, write, sync };
std::atomic<Call> failing{Call::none};
std::atomic<int> failure{0}, opened{0};

/// A checkpoint that comes into being; files that MPI-IO makes beside it have longer names.
bool is_unfinished(std::string_view path)
{
  return path.find(".h5.") != path.npos && path.ends_with(".tmp");
}

bool fails(Call call, int descriptor)
{
  if (failing != call) return false;
  char path[4096];
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  if (length <= 0 || !is_unfinished({path, static_cast<std::size_t>(length)})) return false;
  errno = failure;
  return true;
}

/// As a rank opens what another one has created: tutti itself first, MPI-IO again.
bool fails_to_open(const char* path, int flags)
{
  if (failing != Call::open && failing != Call::open_again) return false;
  if ((flags & O_ACCMODE) == O_RDONLY || (flags & O_CREAT) != 0 || !is_unfinished(path))
    return false;
  if (failing == Call::open_again && opened++ == 0) return false;
  errno = failure;
  return true;
}

template <class Function>
Function* real(const char* name)
{
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#pragma GCC visibility push(default)  // for MPI-IO's libraries too
extern "C" {
ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset)
{
  static auto* const call = real<decltype(pwrite)>("pwrite");
  return fails(Call::write, descriptor) ? -1 : call(descriptor, data, bytes, offset);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset)
{
  static auto* const call = real<decltype(pwrite64)>("pwrite64");
  return fails(Call::write, descriptor) ? -1 : call(descriptor, data, bytes, offset);
}
ssize_t pwritev(int descriptor, const iovec* parts, int count, off_t offset)
{
  static auto* const call = real<decltype(pwritev)>("pwritev");
  return fails(Call::write, descriptor) ? -1 : call(descriptor, parts, count, offset);
}
ssize_t pwritev64(int descriptor, const iovec* parts, int count, off64_t offset)
{
  static auto* const call = real<decltype(pwritev64)>("pwritev64");
  return fails(Call::write, descriptor) ? -1 : call(descriptor, parts, count, offset);
}
ssize_t write(int descriptor, const void* data, size_t bytes)
{
  static auto* const call = real<decltype(write)>("write");
  return fails(Call::write, descriptor) ? -1 : call(descriptor, data, bytes);
}
ssize_t writev(int descriptor, const iovec* parts, int count)
{
  static auto* const call = real<decltype(writev)>("writev");
  return fails(Call::write, descriptor) ? -1 : call(descriptor, parts, count);
}
int fsync(int descriptor)
{
  static auto* const call = real<decltype(fsync)>("fsync");
  return fails(Call::sync, descriptor) ? -1 : call(descriptor);
}
#define TUTTI_OPEN(name)                                                   \
  int name(const char* path, int flags, ...)                               \
  {                                                                        \
    static auto* const call = real<int(const char*, int, ...)>(#name);     \
    va_list more;                                                          \
    va_start(more, flags);                                                 \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                          \
    return fails_to_open(path, flags) ? -1 : call(path, flags, mode);      \
  }
TUTTI_OPEN(open)
TUTTI_OPEN(open64)
}
#pragma GCC visibility pop

using namespace tutti;
using namespace tutti::test;

TEST_CASE("what the file system refuses to one rank is one error on all, and costs that save alone")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, 1);
  job.fill();
  ControlState control = job.coordinator.control();
  const auto save_at = [&](std::uint64_t step, CheckpointIo io, bool background) {
    control.step = step;
    job.coordinator.resume(control);
    CheckpointOptions options;
    options.io = io;
    CheckpointWriter writer(job.topology, directory.path(), options);
    if (!background) {
      writer.save(job.coordinator.boundary());
      return;
    }
    writer.start(job.coordinator.boundary());
    writer.finish();
  };
  save_at(1, CheckpointIo::mpiio, false);
  const std::string first = bytes_of_file(directory.path() / "step-000000000001.h5");
  const std::vector<std::string> there = files_in(directory.path());
  MPI_Barrier(MPI_COMM_WORLD);

  struct Failure {
    Call call;
    int number;
  };
  const int victim = world_size() - 1;
  for (const Failure& planned : {Failure{Call::write, EIO},
                                 {Call::write, EDQUOT},
                                 {Call::write, ENOSPC},
                                 {Call::sync, EIO},
                                 {Call::sync, EDQUOT},
                                 {Call::open, EACCES},
                                 {Call::open_again, EACCES}})
    for (const int way : {0, 1, 2}) {  // mpiio, skeleton, in the background
      const bool inside_mpi = planned.call == Call::open_again;  // which does not say why
      if (inside_mpi && way != 0) continue;
      INFO("call " << static_cast<int>(planned.call) << ", errno " << planned.number << ", way "
                   << way);
      // Another rank than the one that makes the file, where there is one: that one has its tests.
      if (world_rank() == victim) {
        opened = 0;
        failure = planned.number;
        failing = planned.call;
      }
      const std::string said = message_of<IoError>(
          [&] { save_at(2, way == 1 ? CheckpointIo::skeleton : CheckpointIo::mpiio, way == 2); });
      failing = Call::none;
      CHECK(same_on_all_ranks(said));
      CHECK(contains(said, "rank " + std::to_string(victim) + ": "));
      CHECK(contains(said, directory.path().string()));
      if (!inside_mpi) {
        CHECK(contains(said, std::generic_category().message(planned.number)));
        CHECK(contains(said, "errno " + std::to_string(planned.number)));
      }
      CHECK(on_all_ranks(files_in(directory.path()) == there));
      CHECK(on_all_ranks(bytes_of_file(directory.path() / "step-000000000001.h5") == first));
      MPI_Barrier(MPI_COMM_WORLD);
    }
  save_at(2, CheckpointIo::mpiio, false);
  CHECK(on_all_ranks(std::filesystem::exists(directory.path() / "step-000000000002.h5")));
  job.close();
}
