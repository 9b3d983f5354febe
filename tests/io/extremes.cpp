// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checkpoints at the edges: more ranks than cores, and more than 2 GiB of one array on one rank
// while the other has nothing.
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

const char* name_of(CheckpointIo io) { return io == CheckpointIo::mpiio ? "mpiio" : "skeleton"; }

constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;

std::uint64_t free_bytes(const fs::path& directory)
{
  struct statvfs status = {};
  return ::statvfs(directory.c_str(), &status) == 0
             ? static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize
             : 0;
}

std::uint64_t free_memory()
{
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;)
    if (std::uint64_t kibibytes = 0; word == "MemAvailable:" && in >> kibibytes)
      return kibibytes * 1024;
  return 0;
}

}  // namespace

TEST_CASE("many ranks on few cores save and restore", "[many]")
{
  for (const CheckpointIo io : {CheckpointIo::mpiio, CheckpointIo::skeleton}) {
    const SharedDirectory directory;
    Job job(MPI_COMM_WORLD, 1);
    job.fill();
    CheckpointOptions options;
    options.io = io;
    const fs::path file = save_checkpoint(job.coordinator.boundary(), directory.path(), options);
    for (Shelf* shelf : {&job.body, &job.last})
      for (std::size_t a = 0; a < shelf->arrays(); ++a)
        std::fill(shelf->array(a).begin(), shelf->array(a).end(), -1.0f);
    job.restore(file);
    INFO(name_of(io));
    CHECK(job.wrong() == 0);
    job.close();
  }
}

// One call of MPI-IO, POSIX or HDF5 moves less than that somewhere.
TEST_CASE("an array of more than 2 GiB on one rank is saved and restored", "[large]")
{
  constexpr std::uint64_t elements = 21 * gibibyte / 10 / sizeof(float);
  constexpr std::uint64_t room = 3 * gibibyte;
  fs::path base = fs::temp_directory_path();
  std::string lacks;
  if (world_rank() == 0) {
    // In memory it takes seconds; on disk as long as the disk takes.
    if (free_memory() < 3 * room)
      lacks = "9 GiB of memory";
    else if (free_bytes("/dev/shm") > 2 * room && ::access("/dev/shm", W_OK) == 0)
      base = "/dev/shm";
    else if (free_bytes(base) < 2 * room)
      lacks = "6 GiB of disk";
  }
  if (on_all_ranks(lacks.empty()) == false) {
    if (world_rank() == 0) std::printf("skipped: this machine lacks %s\n", lacks.c_str());
    return;
  }
  Topology topology(MPI_COMM_WORLD);
  std::vector<double> weights(static_cast<std::size_t>(world_size()), 0.0);
  weights.back() = 1;
  ParameterSet set;
  set.add({"field", {elements}, Precision::fp32});
  Shelf field(topology, "code", set, {"values"}, weights);
  const bool owner = world_rank() == world_size() - 1;
  REQUIRE(on_all_ranks(field.owns_nothing() != owner));
  Coordinator coordinator(topology, {&field}, epoch_of(1000));
  coordinator.resume(some_control(1));
  std::vector<float>& values = field.array(0);
  const auto value = [](std::size_t i) { return static_cast<float>(i % 8388593) + 0.5f; };
  for (const CheckpointIo io : {CheckpointIo::mpiio, CheckpointIo::skeleton}) {
    const SharedDirectory directory(base);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i < elements ? value(i) : 0;
    CheckpointOptions options;
    options.io = io;
    const fs::path file = save_checkpoint(coordinator.boundary(), directory.path(), options);
    std::fill(values.begin(), values.end(), -1.0f);
    Participant* const participants[] = {&field};
    restore_checkpoint(file, topology, participants);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += values[i] != (i < elements ? value(i) : 0);
    INFO(name_of(io));
    CHECK(wrong == 0);
  }
  coordinator.close();
  topology.close();
}
