// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The MPI transport gives every rank the same sum as merging the ballots one after the other.
#include "tutti/transport.hpp"

#include "catch.hpp"

using namespace tutti;

namespace {

Ballot ballot_of(int rank)
{
  Ballot ballot;
  for (std::size_t f = 0; f < ballot.agreed.size(); ++f)
    ballot.agreed[f] = Agreement(f == 2 && rank == 1 ? 9 : f, static_cast<std::uint32_t>(rank));
  ballot.participants = 2;
  ballot.nonfinite = rank == 2;
  ballot.largest_finite = static_cast<std::uint64_t>(100 - rank);
  ballot.sum_of_squares.add(1.0 / (rank + 3));
  ballot.loss.add(-0.1 * rank);
  if (rank > 0) {
    ballot.offender.stage = 1;
    ballot.offender.parameter = 3;
    ballot.offender.rank = static_cast<std::uint32_t>(rank);
  }
  return ballot;
}

}  // namespace

TEST_CASE("the summed ballot is the merge of all, and the presence bits are or-ed")
{
  int size = 1, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::size_t parameters = 131;
  auto transport = make_mpi_transport(MPI_COMM_WORLD, parameters);
  Ballot expected = ballot_of(0);
  for (int r = 1; r < size; ++r) expected.merge(ballot_of(r));
  for (int round = 0; round < 3; ++round) {
    Ballot ballot = ballot_of(rank);
    std::vector<std::uint8_t> has(parameters, 0);
    has[static_cast<std::size_t>(rank * 16 % 131)] = 1;
    has[130] = rank == size - 1;
    transport->combine(ballot, has);
    CHECK(ballot == expected);
    for (std::size_t p = 0; p < parameters; ++p) {
      bool any = p == 130;
      for (int r = 0; r < size; ++r) any |= static_cast<std::size_t>(r * 16 % 131) == p;
      CHECK((has[p] != 0) == any);
    }
  }
  Confirm confirm;
  confirm.attempt = Agreement(5, static_cast<std::uint32_t>(rank));
  confirm.participants = 1;
  transport->combine(confirm);
  CHECK(confirm.participants == static_cast<std::uint64_t>(size));
  CHECK(confirm.attempt.agreed());
  CHECK(confirm.attempt.min_count == static_cast<std::uint32_t>(size));

  std::string text = rank == size - 1 ? "the reason" : "";
  transport->share(text, size - 1);
  CHECK(text == "the reason");
  text = rank == 0 ? std::string(5000, 'x') : "";
  transport->share(text, 0);
  CHECK(text == std::string(5000, 'x'));  // whole
  transport->close();
}
