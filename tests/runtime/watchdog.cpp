// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The watchdog with real ranks and real time: who is named, and who is not. What happens to a job
// whose rank dies is in the system tests.
#include "tutti/watchdog.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/sharded_adam.hpp"

using namespace tutti;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

using Clock = std::chrono::steady_clock;

/// What this rank's thread was told.
struct Reports {
  std::mutex mutex;
  std::vector<LossReport> all;
  std::function<void(const LossReport&)> take()
  {
    return [this](const LossReport& report) {
      const std::lock_guard<std::mutex> lock(mutex);
      all.push_back(report);
    };
  }
  int count(LossReport::Kind kind)
  {
    const std::lock_guard<std::mutex> lock(mutex);
    int n = 0;
    for (const LossReport& report : all) n += report.kind == kind;
    return n;
  }
};

int over_ranks(int value)
{
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return value;
}

void for_seconds(double seconds, const std::function<void()>& again)
{
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    again();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// All ranks but `who` wait in a barrier for it, while it does `work`.
void keep_waiting(Watchdog& dog, int who, const std::function<void()>& work)
{
  dog.enter(Phase::exchange, 3, 4, 1);
  if (world_rank() == who)
    work();
  else
    dog.wait();
  MPI_Barrier(MPI_COMM_WORLD);
  dog.leave();
}

}  // namespace

TEST_CASE("a rank that stands still while others wait is named once, with its place")
{
  if (world_size() == 1) return;
  for (bool shared : {true, false})
    for (int who : {0, world_size() - 1}) {
      Topology topology(MPI_COMM_WORLD, {1, shared, 0});
      Reports reports;
      {
        Watchdog dog(topology, {0.4, reports.take(), {}, 0});
        CHECK(dog.running());
        keep_waiting(dog, who, [] { for_seconds(1.5, [] {}); });
      }
      CHECK(over_ranks(reports.count(LossReport::Kind::stalled)) == 1);
      CHECK(over_ranks(reports.count(LossReport::Kind::dead)) == 0);
      for (const LossReport& report : reports.all) {
        CHECK(report.rank == who);
        CHECK(report.place == "in phase exchange of step 3 (attempt 4, micro-batch 1)");
        CHECK(report.seconds >= 0.4);
        CHECK(report.message.find("rank " + std::to_string(who) + " hangs") == 0);
      }
      topology.close();
    }
}

TEST_CASE("no alarm: slow but moving, nobody waits, or all are gone")
{
  Topology topology(MPI_COMM_WORLD);
  Reports reports;
  {
    Watchdog dog(topology, {0.4, reports.take(), {}, 0});
    keep_waiting(dog, world_size() - 1, [&] { for_seconds(1.2, [&] { dog.progress(); }); });
    dog.enter(Phase::window, 1, 1);
    for_seconds(1, [] {});  // all of them, in the caller's own code
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  CHECK(over_ranks(static_cast<int>(reports.all.size())) == 0);
  topology.close();
}

TEST_CASE("over nodes each names its own, or says that all of its ranks have arrived")
{
  if (world_size() != 4) return;
  Topology topology(MPI_COMM_WORLD);
  Reports reports;
  {
    Watchdog dog(topology, {0.4, reports.take(), {}, 2});  // as if two ranks were a node
    keep_waiting(dog, 3, [] { for_seconds(1.5, [] {}); });
  }
  CHECK(over_ranks(reports.count(LossReport::Kind::stalled)) == 1);
  CHECK(over_ranks(reports.count(LossReport::Kind::elsewhere)) == 1);
  for (const LossReport& report : reports.all) {
    if (report.kind == LossReport::Kind::stalled) {
      CHECK(report.rank == 3);
      CHECK(world_rank() >= 2);
    } else {
      CHECK(world_rank() < 2);
      CHECK(report.message.find("on another node") != std::string::npos);
    }
  }
  Reports alone;
  {
    Watchdog dog(topology, {0.4, alone.take(), {}, 1});  // a rank a node: nobody sees who waits
    keep_waiting(dog, 3, [] { for_seconds(2, [] {}); });
  }
  CHECK(over_ranks(alone.count(LossReport::Kind::stalled)) == 1);
  for (const LossReport& report : alone.all)
    if (report.kind == LossReport::Kind::stalled) CHECK(world_rank() == 3);
  topology.close();
}

TEST_CASE("a stall in any phase of a step is seen where it is")
{
  if (world_size() == 1) return;
  const int who = world_size() - 1;
  for (const char* phase :
       {"window", "exchange", "ballot", "stage", "gather", "confirm", "publish"}) {
    Topology topology(MPI_COMM_WORLD);
    auto device = make_host_device();
    ParameterSet set;
    set.add({.name = "w", .shape = {10}});
    ShardedAdam adam(topology, *device, set, {});
    adam.initialize([](std::size_t) { return std::vector<float>(10, 1.0f); });
    Reports reports;
    {
      Watchdog dog(topology, {0.3, reports.take(), {}, 0});
      CoordinatorOptions options;
      options.watchdog = &dog;
      options.faults = FaultPlan({parse_fault(std::string("stall:step=1,seconds=0.9,phase=") +
                                              phase + ",rank=" + std::to_string(who))});
      Coordinator coordinator(topology, {&adam}, options);
      for (int step = 0; step < 3; ++step) {
        Window window = coordinator.open_window();
        std::fill_n(static_cast<float*>(adam.gradient(0)), 10, 1.0f);
        window.add_micro_batch(1, 1);
        CHECK(coordinator.step(window).committed());
      }
      MPI_Barrier(MPI_COMM_WORLD);
      coordinator.close();
    }
    CHECK(over_ranks(reports.count(LossReport::Kind::stalled)) == 1);
    for (const LossReport& report : reports.all) {
      CHECK(report.rank == who);
      CHECK(report.place.find(std::string("in phase ") + phase + " of step 1 (attempt 2") == 0);
    }
    adam.close_buffers();
    topology.close();
  }
}

TEST_CASE("every rank is told once when its launcher has ended, and nothing while it is there")
{
  Topology topology(MPI_COMM_WORLD);
  const char* const arguments[] = {"sleep", "60", nullptr};
  pid_t launcher = 0;
  REQUIRE(::posix_spawnp(&launcher, "sleep", nullptr, nullptr, const_cast<char**>(arguments),
                         environ) == 0);
  Reports reports;
  {
    WatchdogOptions options;
    options.on_lost = reports.take();
    options.launcher = launcher;
    Watchdog dog(topology, options);
    dog.enter(Phase::ballot, 2, 5);
    for_seconds(1.5, [] {});
    CHECK(reports.count(LossReport::Kind::orphaned) == 0);
    ::kill(launcher, SIGKILL);
    ::waitpid(launcher, nullptr, 0);
    for_seconds(2.5, [] {});
  }
  CHECK(reports.all.size() == 1);
  CHECK(reports.count(LossReport::Kind::orphaned) == 1);
  for (const LossReport& report : reports.all) {
    CHECK(report.rank == world_rank());
    CHECK(report.pid == launcher);
    CHECK(report.message == "the launcher has ended (process " + std::to_string(launcher) +
                                ", this rank is in phase ballot of step 2 (attempt 5)); resume "
                                "from the last checkpoint");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  topology.close();
}

TEST_CASE("told to end: the thread looks for the dead, then says so")
{
  Topology topology(MPI_COMM_WORLD);
  std::atomic<int> ended{0};
  Reports reports;
  Watchdog dog(topology, {60, reports.take(), [&] { ++ended; }, 0});
  dog.terminating();
  for_seconds(3, [] {});
  CHECK(ended == 1);
  CHECK_FALSE(dog.peer_lost());
  CHECK(reports.all.empty());
  MPI_Barrier(MPI_COMM_WORLD);
  topology.close();
}
