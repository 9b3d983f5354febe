// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How blocks become messages. No data travels here but in the last case; exchange.cpp does that.
#include "message_set.hpp"

#include <vector>

#include "catch.hpp"
#include "mpi_test.hpp"

using tutti::detail::MessageSet;
using tutti::test::world_rank;
using tutti::test::world_size;

namespace {

// Messages to which `blocks` blocks of `bytes` each, `stride` apart, lead.
std::size_t messages(std::size_t limit, std::size_t blocks, std::size_t bytes, std::size_t stride)
{
  MessageSet set(limit);
  for (std::size_t b = 0; b < blocks; ++b)
    set.append(b * stride, bytes, stride == bytes ? b : 2 * b);
  set.send(0, set.finish());
  CHECK(set.bytes_sent() == blocks * bytes);
  const std::size_t count = set.messages_sent();
  set.close();
  return count;
}

}  // namespace

TEST_CASE("blocks fill messages up to the limit and are never cut")
{
  CHECK(messages(100, 0, 10, 10) == 0);
  CHECK(messages(100, 10, 10, 10) == 1);
  CHECK(messages(100, 11, 10, 10) == 2);
  CHECK(messages(99, 10, 10, 10) == 2);
  CHECK(messages(5, 3, 10, 10) == 3);
  CHECK(messages(100, 11, 10, 30) == 2);
}

TEST_CASE("more than two gigabytes are split into messages of at most one")
{
  const std::size_t block = 16384, gibibyte = std::size_t{1} << 30;
  const std::size_t blocks = 5 * (gibibyte / block) / 2;  // 2.5 GiB
  CHECK(messages(gibibyte, blocks, block, block) == 3);
  CHECK(messages(gibibyte, blocks, block, 3 * block) == 3);  // runs at offsets beyond an int
}

TEST_CASE("one sequence goes to several peers and another is scattered from each")
{
  // Each rank sends its bytes 0..15 and 32..47 to all others, which keep them in rank order.
  const int size = world_size(), rank = world_rank();
  std::vector<std::byte> from(64), to(static_cast<std::size_t>(32 * size));
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(64 * rank + static_cast<int>(i));
  }
  for (std::size_t limit : {16, 31, 32, 1000}) {
    MessageSet set(limit);
    set.append(0, 16, 0);
    set.append(32, 16, 2);
    const MessageSet::Sequence mine = set.finish();
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      set.send(r, mine);
      // The halves of what comes are swapped here.
      set.append(static_cast<std::size_t>(32 * r + 16), 16, 0);
      set.append(static_cast<std::size_t>(32 * r), 16, 2);
      set.receive(r, set.finish());
    }
    set.commit();
    to.assign(to.size(), std::byte{0});
    set.transfer(MPI_COMM_WORLD, from.data(), to.data(), 9);
    for (int r = 0; r < size; ++r) {
      for (int i = 0; i < 32; ++i) {
        const int sent = i < 16 ? 64 * r + 32 + i : 64 * r + i - 16;
        CHECK(to[static_cast<std::size_t>(32 * r + i)] ==
              (r == rank ? std::byte{0} : static_cast<std::byte>(sent)));
      }
    }
    CHECK(set.bytes_sent() == static_cast<std::size_t>(32 * (size - 1)));
    CHECK(set.bytes_received() == set.bytes_sent());
    CHECK(set.messages_sent() == static_cast<std::size_t>((limit < 32 ? 2 : 1) * (size - 1)));
    set.close();
  }
}
