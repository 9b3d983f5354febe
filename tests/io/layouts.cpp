// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A checkpoint restored at other rank counts, model-parallel degrees and rank weights than it was
// saved at: every element has its bits, whatever cut it. One run of 8 ranks holds all smaller jobs.
#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

struct Degrees {
  int ranks, model_parallel;
};

std::filesystem::path save_on(Degrees degrees, const std::vector<double>& weights,
                              const std::filesystem::path& directory)
{
  MPI_Comm part = first_ranks(degrees.ranks);
  if (part != MPI_COMM_NULL) {
    Job job(part, degrees.model_parallel, weights);
    job.fill();
    job.save(directory);
    job.close();
    MPI_Comm_free(&part);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return directory / "step-000000000042.h5";
}

/// Restores and compares with the definition; the digest of what came back.
std::uint64_t restore_on(Degrees degrees, const std::vector<double>& weights,
                         const std::filesystem::path& file)
{
  std::uint64_t digest = 0;
  MPI_Comm part = first_ranks(degrees.ranks);
  if (part != MPI_COMM_NULL) {
    Job job(part, degrees.model_parallel, weights);
    const RestoredControl restored = job.restore(file, {.epoch_samples = 1000});
    CHECK(job.wrong() == 0);
    CHECK(job.body.restored_calls() == 1);
    CHECK(restored.control == some_control(job.body.parameters() + 1));
    CHECK(restored.configuration == some_configuration);
    digest = state_digest(job.participants, job.topology.world());
    CHECK(digest == restored.state_digest);
    job.coordinator.resume(restored.control);
    job.close();
    MPI_Comm_free(&part);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return digest;
}

constexpr Degrees every_degree[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 2}, {6, 1},
                                    {6, 2}, {6, 3}, {7, 1}, {8, 1}, {8, 2}, {8, 4}, {8, 8}};

}  // namespace

TEST_CASE("what 4 ranks saved is restored at every degree with the same bits")
{
  REQUIRE(on_all_ranks(world_size() == 8));
  const SharedDirectory directory;
  const auto file = save_on({4, 2}, {3, 1, 0, 2}, directory.path());  // rank 2 owns nothing
  const std::uint64_t digest = restore_on({4, 2}, {}, file);
  for (const Degrees degrees : every_degree) {
    INFO(degrees.ranks << " ranks, model-parallel " << degrees.model_parallel);
    const std::uint64_t other = restore_on(degrees, {}, file);
    if (world_rank() < std::min(4, degrees.ranks)) CHECK(other == digest);
  }
}

TEST_CASE("what any degree saved is restored at others")
{
  REQUIRE(on_all_ranks(world_size() == 8));
  for (const Degrees degrees : every_degree) {
    INFO("saved on " << degrees.ranks << " ranks, model-parallel " << degrees.model_parallel);
    const SharedDirectory directory;
    const auto file = save_on(degrees, {}, directory.path());
    restore_on({4, 2}, {0, 1, 5, 2}, file);
    restore_on({3, 3}, {}, file);
    restore_on({7, 1}, {0, 0, 1, 0, 100, 1, 0}, file);
  }
}

TEST_CASE("the bytes of a checkpoint do not depend on who owned what")
{
  const SharedDirectory one, other;
  const auto first = save_on({4, 2}, {}, one.path());
  const auto second = save_on({4, 2}, {9, 0, 1, 7}, other.path());
  if (world_rank() == 0) {
    const std::string bytes = bytes_of_file(first);
    CHECK(bytes.size() > 1000000);
    CHECK(bytes == bytes_of_file(second));
  }
}
