// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How often a job asks the file system for its checkpoints. This program has the C library's calls
// that take a path under their own names, counts those that go to the test's folder, and passes
// them on: what it links, HDF5 and the C++ library included, calls these.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdarg>
#include <cstring>

#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

char watched[512] = "";  ///< the folder; nothing is counted while it is empty
std::atomic<int> opens{0}, looks{0}, lists{0};

void count(std::atomic<int>& counter, const char* path)
{
  if (watched[0] != 0 && std::strncmp(path, watched, std::strlen(watched)) == 0) ++counter;
}

template <class Function>
Function* next(const char* name)
{
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

using Open = int(const char*, int, ...);
using OpenAt = int(int, const char*, int, ...);

}  // namespace

#define TUTTI_VISIBLE extern "C" [[gnu::visibility("default")]]

#define TUTTI_COUNT_OPEN(name)                                        \
  TUTTI_VISIBLE int name(const char* path, int flags, ...)            \
  {                                                                   \
    va_list rest;                                                     \
    va_start(rest, flags);                                            \
    const auto mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0; \
    va_end(rest);                                                     \
    count((flags & O_DIRECTORY) != 0 ? lists : opens, path);          \
    static Open* const real = next<Open>(#name);                      \
    return real(path, flags, mode);                                   \
  }
TUTTI_COUNT_OPEN(open)
TUTTI_COUNT_OPEN(open64)

#define TUTTI_COUNT_OPENAT(name)                                       \
  TUTTI_VISIBLE int name(int folder, const char* path, int flags, ...) \
  {                                                                    \
    va_list rest;                                                      \
    va_start(rest, flags);                                             \
    const auto mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;  \
    va_end(rest);                                                      \
    count((flags & O_DIRECTORY) != 0 ? lists : opens, path);           \
    static OpenAt* const real = next<OpenAt>(#name);                   \
    return real(folder, path, flags, mode);                            \
  }
TUTTI_COUNT_OPENAT(openat)
TUTTI_COUNT_OPENAT(openat64)

#define TUTTI_COUNT_FOPEN(name)                                             \
  TUTTI_VISIBLE FILE* name(const char* path, const char* mode)              \
  {                                                                         \
    count(opens, path);                                                     \
    static auto* const real = next<FILE*(const char*, const char*)>(#name); \
    return real(path, mode);                                                \
  }
TUTTI_COUNT_FOPEN(fopen)
TUTTI_COUNT_FOPEN(fopen64)

#define TUTTI_COUNT_STAT(name)                                             \
  TUTTI_VISIBLE int name(const char* path, struct stat* status) noexcept   \
  {                                                                        \
    count(looks, path);                                                    \
    static auto* const real = next<int(const char*, struct stat*)>(#name); \
    return real(path, status);                                             \
  }
TUTTI_COUNT_STAT(stat)
TUTTI_COUNT_STAT(lstat)

TUTTI_VISIBLE DIR* opendir(const char* path)
{
  count(lists, path);
  static auto* const real = next<DIR*(const char*)>("opendir");
  return real(path);
}

namespace {

struct Calls {
  int opens = 0, looks = 0, lists = 0;
};

/// What `work` asks of the folder, by rank.
template <class Work>
std::vector<Calls> calls_of(const std::filesystem::path& folder, MPI_Comm job, Work work)
{
  opens = looks = lists = 0;
  std::strncpy(watched, folder.c_str(), sizeof watched - 1);
  work();
  watched[0] = 0;
  int size = 1;
  MPI_Comm_size(job, &size);
  const Calls mine{opens, looks, lists};
  std::vector<Calls> all(static_cast<std::size_t>(size));
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, job);
  return all;
}

}  // namespace

TEST_CASE("opens, looks and listings of checkpoints do not grow with the job")
{
  const SharedDirectory directory;
  MPI_Comm alone = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() == 0 ? 0 : MPI_UNDEFINED, 0, &alone);
  {
    Job job(MPI_COMM_WORLD, 1);
    job.fill();
    for (const std::uint64_t step : {1, 2, 3, 4, 5}) {
      ControlState control = job.coordinator.control();
      control.step = step;
      job.coordinator.resume(control);
      job.save(directory.path());
    }
    job.close();
  }
  const auto resume = [&](Job& job) {
    const auto found = restore_latest(directory.path(), job.topology, job.participants);
    CHECK((found && found->restored.step == 5));
  };
  std::vector<double> weights(static_cast<std::size_t>(world_size()), 1);
  if (world_size() > 1) weights.back() = 0;  // the last one owns nothing

  Calls first;
  for (const bool is_warm : {false, true}) {  // the first restore of all leaves the mark
    Calls one;
    if (alone != MPI_COMM_NULL) {
      Job job(alone, 1);
      one = calls_of(directory.path(), alone, [&] { resume(job); })[0];
      job.close();
    }
    if (!is_warm) continue;
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(one.opens >= 6);  // HDF5's own are counted too
    CHECK(one.lists == 1);

    Job job(MPI_COMM_WORLD, 1, weights);
    const auto all = calls_of(directory.path(), MPI_COMM_WORLD, [&] { resume(job); });
    CHECK(all[0].opens == one.opens);
    CHECK(all[0].looks == one.looks);
    CHECK(all[0].lists == 1);
    for (std::size_t r = 1; r < all.size(); ++r) {
      INFO("rank " << r);
      // The payload is read by the rank that needs it: one open, without a look at anything.
      CHECK(all[r].opens == (weights[r] > 0 ? 1 : 0));
      CHECK(all[r].looks == 0);
      CHECK(all[r].lists == 0);
    }
    first = all[0];
    job.close();
  }
  INFO(first.opens << " opens, " << first.looks << " looks");
  CHECK(first.opens <= 8);
  if (alone != MPI_COMM_NULL) MPI_Comm_free(&alone);
}
