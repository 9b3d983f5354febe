// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Old files stay readable: a committed file of each format version is restored at other degrees
// than it was saved at, with the bits and the digest that it had when it was made.
//
// A new version's file is made once, by the tutti that first writes it:
//   tests/mpirun 2 build/tests/io/test_checkpoint_golden "write the golden file"
// which leaves it in the current folder; add it to `golden/` and to the list below.
#include "places.hpp"
#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

/// A parameter cut over two slots and one that is replicated: three blocks of 16 KiB.
struct Small {
  explicit Small(int model_parallel)
      : topology(MPI_COMM_WORLD, {.model_parallel = model_parallel}),
        shelf(topology, "adam",
              set_of({{"fc.weight", {3, 5}, Precision::fp16, Placement::split, 1},
                      {"fc.bias", {}, Precision::fp16}}),
              {"master"}),
        participants{&shelf}
  {
  }
  Topology topology;
  Shelf shelf;
  std::vector<Participant*> participants;
};

}  // namespace

TEST_CASE("golden files are restored with the bits that they were made with")
{
  const fs::path folder = golden_folder;
  const SharedDirectory scratch;  // a restore may leave a mark beside a file
  const fs::path file = scratch.path() / "step-000000000042.h5";
  if (world_rank() == 0) fs::copy_file(folder / "step-000000000042.v1.h5", file);
  MPI_Barrier(MPI_COMM_WORLD);

  for (int model_parallel = 1; model_parallel <= world_size(); ++model_parallel) {
    if (world_size() % model_parallel != 0) continue;
    INFO("model-parallel " << model_parallel);
    Small run(model_parallel);
    const RestoredControl restored = restore_checkpoint(file, run.topology, run.participants);
    CHECK(run.shelf.wrong() == 0);
    CHECK(restored.format_version == 1);
    CHECK(restored.control == some_control(2));
    CHECK(restored.configuration == some_configuration);
    CHECK(restored.ranks == 2);
    CHECK(restored.model_parallel == 2);
    CHECK(restored.state_digest == 0x6ff85263841a6e32);
    CHECK(state_digest(run.participants, run.topology.world()) == restored.state_digest);
    run.topology.close();
  }
  // Its bytes, not only what they mean: the certificate's own hash.
  CHECK(CheckpointFile(file).root() == 0x188efb22c5ccfaf0);
  CHECK(verify_checkpoint(file, MPI_COMM_WORLD).blocks == 3);
}

TEST_CASE("write the golden file", "[.]")
{
  REQUIRE(on_all_ranks(world_size() == 2));
  Small run(2);
  Coordinator coordinator(run.topology, run.participants, epoch_of(1000));
  run.shelf.fill();
  coordinator.resume(some_control(2));
  const auto file =
      save_checkpoint(coordinator.boundary(), ".", {.configuration = some_configuration});
  const CheckpointFile made(file);
  CAPTURE(made.root(), made.state_digest());
  WARN(file.string() << " has root " << std::hex << made.root() << " and state digest "
                     << made.state_digest());
  coordinator.close();
  run.topology.close();
}
