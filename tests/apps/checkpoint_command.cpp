// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti checkpoint` on files with a code's own arrays, which no run of the command makes. All else
// about it is in the system tests.
#include "checkpoint_command.hpp"

#include <cstring>

#include "io/shelf.hpp"

using namespace tutti;
using namespace tutti::apps;
using namespace tutti::test;

TEST_CASE("diff sees a code's own arrays and scalars", "[checkpoint]")
{
  const SharedDirectory directory;
  Topology topology(MPI_COMM_WORLD);
  Shelf shelf(topology, "adam", set_of({{"w", {3}}}), {"master"});
  Coordinator coordinator(topology, {&shelf}, epoch_of(1000));
  shelf.fill();
  coordinator.resume(some_control(1));

  // Columns of a field, one block of them a rank, and a time.
  const auto ranks = static_cast<std::size_t>(world_size());
  const auto rank = static_cast<std::size_t>(world_rank());
  std::vector<double> field(3000);
  for (std::size_t i = 0; i < field.size(); ++i)
    field[i] = static_cast<double>(i % 1000 + 1000 * rank) + 0.5 * static_cast<double>(i / 1000);
  std::int64_t time = 7;
  const auto save = [&](const char* name) {
    OwnArrays own;
    own.add("field", field.data(), {3, 1000 * ranks}, {{0, 1000 * rank}, {3, 1000}});
    own.add_scalar("time", &time);
    CheckpointOptions options;
    options.own = &own;
    save_checkpoint(coordinator.boundary(), directory.path() / name, options);
    return (directory.path() / name / "step-000000000042.h5").string();
  };
  const std::string one = save("one"), same = save("same");
  time = 8;
  const std::string later = save("later");
  time = 7;
  if (rank == ranks - 1) field[2999] += 0.25;
  const std::string other = save("other");

  const auto diff = [&](const std::string& a, const std::string& b) {
    return checkpoint_command({"diff", {a, b}}, MPI_COMM_WORLD);
  };
  CHECK(diff(one, same) == ExitCode::ok);
  CHECK(diff(one, later) == ExitCode::error);
  CHECK(diff(one, other) == ExitCode::error);
  CHECK(checkpoint_command({"show", {one}}, MPI_COMM_WORLD) == ExitCode::ok);
  CHECK(checkpoint_command({"verify", {one, other}}, MPI_COMM_WORLD) == ExitCode::ok);

  // Global order, whoever held what.
  const CheckpointFile file(other);
  const std::vector<std::byte> bytes = file.read_own("field");
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  REQUIRE(values.size() == 3000 * ranks);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t row = i / (1000 * ranks), column = i % (1000 * ranks);
    const double right = static_cast<double>(column) + 0.5 * static_cast<double>(row) +
                         (i + 1 == values.size() ? 0.25 : 0);
    wrong += values[i] != right;
  }
  CHECK(wrong == 0);
  std::int64_t saved = 0;
  std::memcpy(&saved, file.read_own("time").data(), sizeof saved);
  CHECK(saved == 7);
  CHECK(contains(message_of<InvalidArgument>([&] { file.read_own("none"); }),
                 "has no own array or scalar 'none'"));
  MPI_Barrier(MPI_COMM_WORLD);
  coordinator.close();
  topology.close();
}
