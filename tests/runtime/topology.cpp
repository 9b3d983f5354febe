// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Axes, memory domains and what refuses a topology, at every degree that the rank count allows.
#include "tutti/topology.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

using namespace tutti;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

// World ranks of a communicator's members in its own order.
std::vector<int> members(MPI_Comm communicator)
{
  int size = 0;
  MPI_Comm_size(communicator, &size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  const int mine = world_rank();
  MPI_Allgather(&mine, 1, MPI_INT, ranks.data(), 1, MPI_INT, communicator);
  return ranks;
}

std::string refusal(const TopologyOptions& options)
{
  try {
    Topology topology(MPI_COMM_WORLD, options);
    topology.close();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

// The message that all ranks got, or which two differ.
std::string common(const std::string& text)
{
  std::vector<char> first(512, '\0');
  std::copy_n(text.begin(), std::min<std::size_t>(text.size(), 511), first.begin());
  MPI_Bcast(first.data(), 512, MPI_CHAR, 0, MPI_COMM_WORLD);
  return tutti::test::on_all_ranks(text == first.data()) ? text : "ranks differ: " + text;
}

}  // namespace

TEST_CASE("the axes hold the right ranks in the right order at every degree")
{
  for (int degree = 1; degree <= world_size(); ++degree) {
    if (world_size() % degree != 0) continue;
    Topology topology(MPI_COMM_WORLD, {.model_parallel = degree});
    const int rank = world_rank();
    CHECK(topology.rank() == rank);
    CHECK(topology.size() == world_size());
    CHECK(topology.model_parallel() == degree);
    CHECK(topology.data_parallel() == world_size() / degree);
    CHECK(topology.data_rank() * degree + topology.model_rank() == rank);
    std::vector<int> data, model;
    for (int d = 0; d < topology.data_parallel(); ++d) data.push_back(d * degree + rank % degree);
    for (int m = 0; m < degree; ++m) model.push_back(rank / degree * degree + m);
    CHECK(members(topology.data_axis()) == data);
    CHECK(members(topology.model_axis()) == model);
    topology.close();
    topology.close();
    CHECK(topology.world() == MPI_COMM_NULL);
  }
}

TEST_CASE("every rank knows the memory domain of every rank")
{
  for (const int limit : {0, 1, 2, 3}) {
    for (const bool shared : {true, false}) {
      Topology topology(MPI_COMM_WORLD, {.shared_memory = shared, .domain_size = limit});
      const int size = world_size();
      const int width = !shared ? 1 : limit == 0 ? size : limit;
      INFO("limit " << limit << ", shared " << shared);
      CHECK(topology.shared_memory() == shared);
      CHECK(topology.domains() == (size + width - 1) / width);
      for (int r = 0; r < size; ++r) {
        std::vector<int> expected;
        for (int q = r / width * width; q < std::min(size, r / width * width + width); ++q)
          expected.push_back(q);
        CHECK(topology.domain_of(r) == expected);
        CHECK(topology.domain_index(r) == r / width);
        CHECK(topology.same_domain(r, world_rank()) == (r / width == world_rank() / width));
      }
      CHECK(members(topology.domain()) == topology.domain_of(world_rank()));
      topology.close();
    }
  }
}

TEST_CASE("a degree that does not divide the ranks is refused by all with the same advice")
{
  const int size = world_size();
  CHECK(common(refusal({.model_parallel = 0})).find("a model-parallel degree of 0") == 0);
  CHECK(common(refusal({.model_parallel = -2})).find("a model-parallel degree of -2") == 0);
  CHECK(common(refusal({.domain_size = -1})).find("a memory domain of -1 ranks") == 0);
  const std::string too_many = common(refusal({.model_parallel = size + 1}));
  CHECK(too_many.find("start " + std::to_string(size + 1) + " ranks, or set --model-parallel 1") !=
        std::string::npos);
  if (size == 3) {
    CHECK(
        common(refusal({.model_parallel = 2})) ==
        "3 ranks cannot form a model-parallel degree of 2 (3 is not a multiple of 2); start 2 or 4 "
        "ranks, or set --model-parallel 1");
  }
}

TEST_CASE("ranks that disagree on an option are all refused")
{
  if (world_size() == 1) return;
  const bool last = world_rank() == world_size() - 1;
  CHECK(common(refusal({.model_parallel = last ? world_size() : 1})) ==
        "the ranks disagree on the model-parallel degree (some have 1, some " +
            std::to_string(world_size()) + "); give all ranks the same options");
  CHECK(common(refusal({.shared_memory = last})).find("disagree on whether to share memory") !=
        std::string::npos);
  CHECK(common(refusal({.domain_size = last ? 1 : 2})).find("disagree on the size of a memory") !=
        std::string::npos);
}

TEST_CASE("errors are returned on the duplicates only")
{
  MPI_Errhandler before, after, own;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  Topology topology(MPI_COMM_WORLD);
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  CHECK(before == after);
  for (MPI_Comm communicator :
       {topology.world(), topology.data_axis(), topology.model_axis(), topology.domain()}) {
    CHECK(communicator != MPI_COMM_WORLD);
    MPI_Comm_get_errhandler(communicator, &own);
    CHECK(own == MPI_ERRORS_RETURN);
  }
  // A failing call on a duplicate comes back, and the exception names call, rank and place.
  int value = 0;
  const int status = MPI_Bcast(&value, 1, MPI_INT, world_size(), topology.world());
  REQUIRE(status != MPI_SUCCESS);
  try {
    check_mpi(status, "MPI_Bcast");
    FAIL("a failing status was let through");
  } catch (const MpiError& error) {
    const std::string text = error.what();
    CHECK(error.mpi_status == status);
    CHECK(text.find("rank " + std::to_string(world_rank()) + ": MPI_Bcast failed (") == 0);
    CHECK(text.find("topology.cpp:") != std::string::npos);
  }
  topology.close();
}

namespace {

/// What `work` writes to standard error.
template <class Work>
std::string standard_error_of(Work&& work)
{
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  work();
  std::fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text(static_cast<std::size_t>(lseek(fileno(file), 0, SEEK_END)), '\0');
  std::rewind(file);
  CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("what is not closed says so, once, and not while an exception unwinds")
{
  CHECK(standard_error_of([] {
          Topology closed(MPI_COMM_WORLD);
          closed.close();
          try {
            Topology unwound(MPI_COMM_WORLD);
            throw std::runtime_error("the words that count");
          } catch (const std::runtime_error&) {
            return;
          }
        }).empty());
  const std::string text = standard_error_of([] { Topology left_open(MPI_COMM_WORLD); });
  CHECK(text == "tutti: rank " + std::to_string(world_rank()) +
                    ": a Topology is left open (what it holds of MPI is freed by all ranks "
                    "together, not by a destructor); call close() on all ranks before it goes\n");
  CHECK(standard_error_of([] { Topology another(MPI_COMM_WORLD); }).empty());
}
