// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main of every test: MPI before Kokkos, the same test cases in the same order on all ranks,
// one exit code for all. Rank 0 writes Catch2's report; another rank's report is shown, with a
// prefix, as soon as one of its test cases has failed. Works without mpirun; listing does not start
// MPI.
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/kokkos_runtime.hpp"

namespace {

#if CATCH_VERSION_MAJOR >= 3
using ListenerBase = Catch::EventListenerBase;
constexpr auto declared_order = Catch::TestRunOrder::Declared;
const std::string& name_of(const Catch::TestCaseStats& stats) { return stats.testInfo->name; }
void without_colour(Catch::ConfigData& config)
{
  config.defaultColourMode = Catch::ColourMode::None;
}
#else
using ListenerBase = Catch::TestEventListenerBase;
constexpr auto declared_order = Catch::RunTests::InDeclarationOrder;
const std::string& name_of(const Catch::TestCaseStats& stats) { return stats.testInfo.name; }
void without_colour(Catch::ConfigData& config) { config.useColour = Catch::UseColour::No; }
#endif

// How long a rank whose test case failed waits for the others, which may be in a collective without
// it.
constexpr std::chrono::seconds patience{20};

struct Ranks {
  MPI_Comm comm = MPI_COMM_NULL;  // a duplicate: never matches a collective of the test
  int rank = 0;
  int size = 1;
  std::ostringstream report;  // of a rank other than 0

  std::string prefix() const
  {
    return "[rank " + std::to_string(rank) + "/" + std::to_string(size) + "] ";
  }

  // One write with a prefix on each line, so that two ranks' reports do not interleave.
  void show(const std::string& text) const
  {
    std::istringstream lines(text);
    std::string out;
    for (std::string line; std::getline(lines, line);) {
      out += prefix() + line + "\n";
    }
    std::fwrite(out.data(), 1, out.size(), stderr);
  }

  // Keeps the ranks in the same test case. Without it a rank that failed early would go on and its
  // next collective would match an older one of its peers.
  void meet(const std::string& test, bool failed) const
  {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(comm, &request);
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) {
        return;
      }
      if (failed && std::chrono::steady_clock::now() - start > patience) {
        show("test case \"" + test + "\" failed here and other ranks did not end it (waited " +
             std::to_string(patience.count()) + " s); ending the run");
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
};

Ranks* ranks = nullptr;  // null while no MPI is running, as when listing

class RankListener : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override
  {
    if (ranks == nullptr) {
      return;
    }
    const bool failed = stats.totals.assertions.failed > 0;
    if (failed && ranks->rank != 0) {
      ranks->show(ranks->report.str());
    }
    ranks->report.str("");
    if (failed) {
      std::cout.flush();
    }
    ranks->meet(name_of(stats), failed);
  }
};

bool only_lists(const Catch::ConfigData& config)
{
#if CATCH_VERSION_MAJOR >= 3
  const bool lists_more = config.listListeners;
#else
  const bool lists_more = config.listTestNamesOnly;
#endif
  return lists_more || config.showHelp || config.libIdentify || config.listTests ||
         config.listTags || config.listReporters;
}

// The same cases, order and random numbers on all ranks, and a report of their own for ranks other
// than 0.
void agree(Catch::ConfigData& config, const Ranks& here)
{
  unsigned seed = config.rngSeed;
  MPI_Bcast(&seed, 1, MPI_UNSIGNED, 0, here.comm);
  config.rngSeed = seed;
  config.runOrder = declared_order;
  if (here.size > 1) {  // mpirun gives ranks a terminal even when its own output is a file
    without_colour(config);
  }
  if (here.rank != 0) {
#if CATCH_VERSION_MAJOR >= 3
    config.defaultOutputFilename.clear();
    config.reporterSpecifications.clear();
#else
    config.outputFilename.clear();
    config.reporterName = "console";
#endif
  }
}

int run(Catch::Session& session, Ranks& here)
{
  // Catch2 2 and 3 both write to whatever buffer std::cout has when the run starts.
  std::streambuf* const standard_output = std::cout.rdbuf();
  if (here.rank != 0) {
    std::cout.rdbuf(here.report.rdbuf());
  }
  const int code = session.run();
  std::cout.rdbuf(standard_output);
  std::cout.flush();

  std::vector<int> codes(static_cast<std::size_t>(here.size));
  MPI_Gather(&code, 1, MPI_INT, codes.data(), 1, MPI_INT, 0, here.comm);
  if (here.rank == 0 && here.size > 1) {
    std::string failed;
    for (int r = 0; r < here.size; ++r) {
      failed += codes[static_cast<std::size_t>(r)] != 0 ? " " + std::to_string(r) : "";
    }
    if (!failed.empty()) {
      std::printf("failed on ranks%s of %d\n", failed.c_str(), here.size);
    }
  }
  int worst = code;
  MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, here.comm);
  return worst;
}

}  // namespace

CATCH_REGISTER_LISTENER(RankListener)

int main(int argc, char** argv)
{
  if (const char* device = std::getenv("TUTTI_TEST_DEVICE");
      device != nullptr && std::string(device) == "cuda" && tutti::cuda_device_count() == 0) {
    std::printf("no GPU is usable here\n");
    return 77;
  }
  Catch::Session session;
  const int usage = session.applyCommandLine(argc, argv);
  if (usage != 0 || only_lists(session.configData())) {
    return usage != 0 ? usage : session.run();
  }

  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  const bool kokkos = tutti::start_kokkos(argc, argv);
  int code = 0;
  {
    Ranks here;
    MPI_Comm_dup(MPI_COMM_WORLD, &here.comm);
    MPI_Comm_rank(here.comm, &here.rank);
    MPI_Comm_size(here.comm, &here.size);
    ranks = &here;
    auto config = session.configData();
    agree(config, here);
    session.useConfigData(config);
    code = run(session, here);
    ranks = nullptr;
    MPI_Comm_free(&here.comm);
  }
  if (kokkos) tutti::end_kokkos();
  MPI_Finalize();
  return code;
}
