// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// When a rank asks for a stop, and what all hear of it. Real signals and whole runs are in
// tests/system.
#include "stop_request.hpp"

#include <mpi.h>

#include <chrono>
#include <thread>

#include "catch.hpp"

using namespace tutti::apps;
using tutti::test::Approx;

namespace {

TrainConfig with_walltime(double seconds)
{
  TrainConfig config;
  config.checkpoint_dir = "anywhere";
  config.walltime = seconds;
  return config;
}

}  // namespace

TEST_CASE("the time that a save needs is guessed, then learned", "[stop]")
{
  StopRequest stop(with_walltime(1e6), true);
  const double leaving = stop.needed();
  CHECK(leaving > 0);
  stop.guess_save(1e9);
  CHECK(stop.needed() >= leaving + 10);  // at 100 MB/s
  stop.saved(4);                         // shorter than the guess, which is forgotten
  CHECK(stop.needed() == Approx(leaving + 1.5 * 4));
  stop.guess_save(1e9);
  stop.saved(1);
  CHECK(stop.needed() == Approx(leaving + 1.5 * 4));
  stop.saved(6);
  CHECK(stop.needed() == Approx(leaving + 1.5 * 6));
}

TEST_CASE("an attempt's time is learned, without what comes between two", "[stop]")
{
  StopRequest stop(with_walltime(1e6), true);
  const double leaving = stop.needed();
  CHECK_FALSE(stop.asked());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stop.attempted();
  const double with_attempt = stop.needed();
  CHECK(with_attempt >= leaving + 1.5 * 0.1);
  std::this_thread::sleep_for(std::chrono::duration<double>(with_attempt - leaving));  // a save
  CHECK_FALSE(stop.asked());
  stop.attempted();
  CHECK(stop.needed() == with_attempt);
}

TEST_CASE("with saves in the background the end may wait for two", "[stop]")
{
  TrainConfig config = with_walltime(1e6);
  config.checkpoint_async = "on";
  StopRequest stop(config, true);
  const double leaving = stop.needed();
  stop.saved(4);
  CHECK(stop.needed() == Approx(leaving + 2 * 1.5 * 4));
}

TEST_CASE("the rank that knows asks, and all hear why", "[stop]")
{
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int knows = size - 1;
  StopRequest enough(with_walltime(1e6), rank == knows);
  CHECK_FALSE(enough.asked());
  StopRequest late(with_walltime(60), rank == knows);
  CHECK_FALSE(late.asked());
  late.saved(100);
  CHECK(late.asked() == (rank == knows));
  const std::string reason = late.agreed_reason(MPI_COMM_WORLD);
  CHECK(reason.find("needs 152 s, 59 s left") != std::string::npos);
  CHECK((reason.find("rank ") == 0) == (knows != 0));
}

TEST_CASE("without a checkpoint folder nothing asks", "[stop]")
{
  TrainConfig config = with_walltime(0.001);
  config.checkpoint_dir.clear();
  StopRequest stop(config, true);
  stop.saved(1000);
  CHECK_FALSE(stop.asked());
}
