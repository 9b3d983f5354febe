// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The thread of a background save by itself: where it runs, what it reports, how it is left.
#include "background_write.hpp"

#include <unistd.h>

#include <cstdio>
#include <thread>

#include "catch.hpp"

using namespace tutti;
using namespace tutti::detail;
namespace fs = std::filesystem;

namespace {

/// A payload without blocks that notes which threads reach its phases.
std::shared_ptr<Payload> empty_payload(std::vector<std::thread::id>& threads)
{
  auto payload = std::make_shared<Payload>(0);
  std::string name = (fs::temp_directory_path() / "tutti-write-XXXXXX").string();
  const int descriptor = mkstemp(name.data());
  REQUIRE(descriptor >= 0);
  close(descriptor);
  payload->file = PosixFile::open_to_write(name);
  remove_quietly(name);
  payload->reached = [&threads](Phase) { threads.push_back(std::this_thread::get_id()); };
  return payload;
}

}  // namespace

TEST_CASE("a background write runs on a thread, or at once where there are none")
{
  for (const bool has_threads : {true, false}) {
    std::vector<std::thread::id> threads;
    BackgroundWrite write(empty_payload(threads), has_threads);
    if (!has_threads) CHECK(write.report().state == SaveState::done);
    write.join();
    CHECK(write.report().state == SaveState::done);
    REQUIRE(threads.size() == 2);  // payload and sync
    for (const std::thread::id id : threads)
      CHECK((id == std::this_thread::get_id()) == !has_threads);
  }
}

TEST_CASE("a background write reports the system's reason and throws it when joined")
{
  std::vector<std::thread::id> threads;
  auto payload = empty_payload(threads);
  payload->file = {};  // what is not open cannot be synced
  BackgroundWrite write(payload, true);
  CHECK_THROWS_AS(write.join(), FileError);
  CHECK(write.report().state == SaveState::failed);
  CHECK(write.report().code == EBADF);
}

TEST_CASE("a payload that is given up ends its thread at the next piece of work")
{
  std::vector<std::thread::id> threads;
  auto payload = empty_payload(threads);
  payload->give_up();
  BackgroundWrite write(payload, true);
  CHECK_THROWS_AS(write.join(), IoError);
  CHECK(write.report().state == SaveState::failed);
  CHECK(threads.empty());
}
