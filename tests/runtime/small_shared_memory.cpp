// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What an exchange does where /dev/shm is too small; the script of the same name makes it so.
#include <cstdlib>
#include <cstring>
#include <string>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/exchange.hpp"

using namespace tutti;

TEST_CASE("a job without room in /dev/shm runs by messages and says why")
{
  const char* const reason = std::getenv("TUTTI_TEST_REASON");
  REQUIRE(reason != nullptr);
  Topology topology(MPI_COMM_WORLD, {.domain_size = 2});
  ParameterSet parameters;
  parameters.add({"w", {2600000}});  // 40 MiB a domain of two
  const ShardPlan plan(parameters, topology.size(), 1);
  Exchange exchange(topology, plan, {});
  const std::string& text = exchange.description();
  INFO(text);
  CHECK(text.find("messages (") == 0);
  CHECK(text.find(reason) != std::string::npos);

  std::memset(exchange.contribution(), 1 + topology.rank(), plan.layout(0).bytes());
  exchange.enter();
  exchange.exchange();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < exchange.sources().size(); ++i) {
    const auto* const bytes = static_cast<const unsigned char*>(exchange.sources()[i]);
    wrong += bytes[0] != 1 + exchange.source_rank()[i];
    wrong += bytes[16383] != 1 + exchange.source_rank()[i];
  }
  CHECK(wrong == 0);
  tutti::test::on_all_ranks(true);
  exchange.close();
  topology.close();
}
