// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A crash at any moment of a save, with everything that a file system may make of what was not
// synced: the real reader finds the older or the newer checkpoint, whole. Saves are recorded call
// by call, then every state that a crash may leave is rebuilt and read.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "crash_recorder.hpp"
#include "crash_states.hpp"
#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

/// A few blocks on each rank.
std::vector<ParameterSpec> small_model()
{
  return {{"w", {9000}, Precision::fp32}, {"bias", {100}, Precision::fp16}};
}

/// What was saved, and so may be found again.
struct Saved {
  std::uint64_t step = 0, attempt = 0, digest = 0;
};

/// Collective: the job in a state of its own, a function of `step` and `attempt`.
Saved advance(Job& job, std::uint64_t step, std::uint64_t attempt)
{
  job.fill();
  ControlState control = job.coordinator.control();
  control.step = step;
  control.attempt = attempt;
  job.coordinator.resume(control);
  for (Shelf* shelf : {&job.body, &job.last})
    for (std::size_t a = 0; a < shelf->arrays(); ++a)
      for (float& value : shelf->array(a)) value /= static_cast<float>(attempt);
  return {step, attempt, state_digest(job.participants, job.topology.world())};
}

/// All ranks' operations on all ranks.
std::vector<Operation> gathered(const std::vector<Operation>& mine)
{
  std::string packed;
  const auto put = [&](std::uint64_t n) {
    packed.append(reinterpret_cast<const char*>(&n), sizeof n);
  };
  const auto put_text = [&](const std::string& text) {
    put(text.size());
    packed += text;
  };
  for (const Operation& o : mine) {
    for (const std::uint64_t n :
         {static_cast<std::uint64_t>(o.kind), static_cast<std::uint64_t>(o.process), o.begin, o.end,
          o.inode, o.offset})
      put(n);
    for (const std::string* text : {&o.path, &o.to, &o.bytes}) put_text(*text);
  }
  const int size = static_cast<int>(packed.size());
  std::vector<int> sizes(static_cast<std::size_t>(world_size())), begins{0};
  MPI_Allgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD);
  for (const int n : sizes) begins.push_back(begins.back() + n);
  std::string all(static_cast<std::size_t>(begins.back()), '\0');
  MPI_Allgatherv(packed.data(), size, MPI_CHAR, all.data(), sizes.data(), begins.data(), MPI_CHAR,
                 MPI_COMM_WORLD);

  std::size_t at = 0;
  const auto take = [&] {
    std::uint64_t n = 0;
    std::memcpy(&n, &all[at], sizeof n);
    at += sizeof n;
    return n;
  };
  const auto take_text = [&] {
    const std::size_t length = take();
    at += length;
    return all.substr(at - length, length);
  };
  std::vector<Operation> operations;
  while (at < all.size()) {
    Operation& o = operations.emplace_back();
    o.kind = static_cast<OperationKind>(take());
    o.process = static_cast<int>(take());
    o.begin = take();
    o.end = take();
    o.inode = take();
    o.offset = take();
    o.path = take_text();
    o.to = take_text();
    o.bytes = take_text();
  }
  return operations;
}

/// One clock for the processes of this node.
class SharedClock {
 public:
  SharedClock()
  {
    const MPI_Aint bytes = world_rank() == 0 ? sizeof(std::atomic<std::uint64_t>) : 0;
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &clock_, &window_);
    MPI_Aint size = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &size, &unit, &clock_);
    if (world_rank() == 0) new (clock_) std::atomic<std::uint64_t>(1);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~SharedClock() { MPI_Win_free(&window_); }
  SharedClock(const SharedClock&) = delete;
  SharedClock& operator=(const SharedClock&) = delete;
  std::atomic<std::uint64_t>* get() const { return clock_; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::atomic<std::uint64_t>* clock_ = nullptr;
};

/// Collective: what `work` did to the files in `directory`.
History recorded(const fs::path& directory, const std::function<void()>& work)
{
  const SharedClock clock;
  Snapshot before = snapshot_of(directory.string());
  MPI_Barrier(MPI_COMM_WORLD);
  start_recording(directory.string(), world_rank(), clock.get());
  MPI_Barrier(MPI_COMM_WORLD);
  work();
  MPI_Barrier(MPI_COMM_WORLD);
  return {directory.string(), std::move(before), gathered(stop_recording())};
}

/// What a reader makes of a directory.
struct Found {
  std::optional<std::size_t> saved;  ///< which of the saved states it holds now
  std::string trouble;               ///< what was refused on the way, or is wrong
};

/// Reads directories that crashes left behind, one rank by itself.
class Reader {
 public:
  Reader(std::vector<Saved> saved, fs::path folder)
      : saved_(std::move(saved)),
        folder_(std::move(folder)),
        job_(MPI_COMM_SELF, 1, {}, small_model())
  {
    fs::create_directory(folder_);
  }
  ~Reader() { job_.close(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const Found& read(const CrashState& state)
  {
    const auto [known, is_new] = seen_.try_emplace(state.key);
    if (is_new) {
      put(state.tree());
      known->second = look();
    }
    return known->second;
  }

 private:
  /// Only what differs from the state before is written.
  void put(const Tree& tree)
  {
    for (const auto& [path, content] : there_.files) {
      fs::remove((folder_ / path).string() + ".verified");  // left by a restore
      if (tree.files.count(path) == 0) fs::remove(folder_ / path);
    }
    for (const std::string& directory : there_.directories)
      if (std::count(tree.directories.begin(), tree.directories.end(), directory) == 0)
        fs::remove_all(folder_ / directory);
    for (const std::string& directory : tree.directories) fs::create_directory(folder_ / directory);
    for (const auto& [path, content] : tree.files) {
      const auto old = there_.files.find(path);
      if (old != there_.files.end() && old->second == content) continue;
      write_file(folder_ / path, content.head);
      fs::resize_file(folder_ / path, content.size);
    }
    there_ = tree;
  }

  Found look()
  {
    // Where the run's checkpoints are: in a directory that the save has made, if any.
    fs::path run = folder_;
    for (const std::string& directory : there_.directories) run = folder_ / directory;
    Found found;
    std::vector<std::string> refused;
    try {
      const auto latest = restore_latest(run, job_.topology, job_.participants, {}, &refused);
      for (const std::string& line : refused) found.trouble += line + "\n";
      if (!latest) return found;
      const RestoredControl& restored = latest->restored;
      const std::uint64_t digest = state_digest(job_.participants, job_.topology.world());
      for (std::size_t i = 0; i < saved_.size(); ++i)
        if (digest == saved_[i].digest && restored.state_digest == digest &&
            restored.control.step == saved_[i].step &&
            restored.control.attempt == saved_[i].attempt)
          found.saved = i;
      if (!found.saved) found.trouble += "a mixture was restored from " + latest->file.string();
    } catch (const Error& error) {
      found.trouble += error.what();
    }
    return found;
  }

  std::vector<Saved> saved_;
  fs::path folder_;
  Job job_;
  Tree there_;
  std::map<std::string, Found> seen_;
};

/// How the states of a history are read, over all ranks.
struct Tally {
  std::uint64_t states = 0;
  std::uint64_t lost = 0;       ///< nothing, or a mixture, is restored
  std::uint64_t refused = 0;    ///< a file with a final name is not whole, whatever else there is
  std::uint64_t forgotten = 0;  ///< the save had returned, and its checkpoint is not the one found
  std::uint64_t older = 0, newer = 0;
  std::string first;  ///< of what went wrong on this rank
};

/// Collective: each rank reads its share. The last of what was saved is the newest.
Tally read_all(const History& history, Reader& reader, std::size_t newest)
{
  Tally tally;
  std::set<std::string> mine;
  history.each([&](const CrashState& state) {
    if (hash_of(state.key) % static_cast<std::uint64_t>(world_size()) !=
        static_cast<std::uint64_t>(world_rank()))
      return;
    const bool returned = state.tick == history.end();
    if (!mine.insert(state.key + (returned ? "!" : "")).second) return;
    const Found& found = reader.read(state);
    const bool is_newest = found.saved == newest;
    tally.states += 1;
    tally.lost += !found.saved;
    tally.refused += !found.trouble.empty();
    tally.forgotten += returned && !is_newest;
    (is_newest ? tally.newer : tally.older) += found.saved.has_value();
    if (tally.first.empty() && (!found.trouble.empty() || (returned && !is_newest)))
      tally.first = fmt::format("{}\nat tick {} of {}, with\n{}", found.trouble, state.tick,
                                history.end(), state.key);
  });
  for (std::uint64_t* count :
       {&tally.states, &tally.lost, &tally.refused, &tally.forgotten, &tally.older, &tally.newer})
    MPI_Allreduce(MPI_IN_PLACE, count, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return tally;
}

enum class Way { mpiio, skeleton, background };
constexpr std::array<Way, 3> all_ways = {Way::mpiio, Way::skeleton, Way::background};
const char* name_of(Way way)
{
  return way == Way::mpiio ? "mpiio" : way == Way::skeleton ? "skeleton" : "background";
}

/// One recorded save and its reader.
struct Scene {
  /// Saves `older` (nothing: there is no directory yet), then records a save of `newer`, and keeps
  /// so many.
  Scene(Way way, std::optional<Saved> older, Saved newer, std::uint64_t keep = 0)
      : job(MPI_COMM_WORLD, 1, {}, small_model())
  {
    CheckpointOptions options;
    options.configuration = some_configuration;
    options.io = way == Way::mpiio ? CheckpointIo::mpiio : CheckpointIo::skeleton;
    options.keep = keep;
    const fs::path run = older ? root() : root() / "a" / "b";
    if (world_rank() == 0) fs::create_directory(root());
    MPI_Barrier(MPI_COMM_WORLD);
    if (older) {
      saved.push_back(advance(job, older->step, older->attempt));
      save_checkpoint(job.coordinator.boundary(), run, options);
    }
    CheckpointWriter writer(job.topology, run, options);
    saved.push_back(advance(job, newer.step, newer.attempt));
    history.emplace(recorded(root(), [&] {
      if (way != Way::background) {
        writer.save(job.coordinator.boundary());
      } else {
        writer.start(job.coordinator.boundary());
        writer.finish();
      }
    }));
    reader.emplace(saved, directory.path() / fmt::format("states-{}", world_rank()));
    // Nothing went past the recorder, or the states would not be those of this save.
    const Tree now = snapshot_of(root().string()).tree;
    const Tree last = history->last();
    complete = on_all_ranks(last.files == now.files && last.directories == now.directories);
    job.close();
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  fs::path root() const { return directory.path() / "run"; }
  Tally tally() { return tally(*history); }
  Tally tally(const History& other) { return read_all(other, *reader, saved.size() - 1); }

  SharedDirectory directory;
  Job job;
  std::vector<Saved> saved;
  std::optional<History> history;
  std::optional<Reader> reader;
  bool complete = false;
};

}  // namespace

TEST_CASE("a crash at any moment of a save leaves the older or the newer checkpoint whole",
          "[save]")
{
  struct {
    Saved newer;
    std::uint64_t keep;
  } const cases[] = {{{43, 48, 0}, 1},   // a next step; in the end the older one is removed
                     {{42, 48, 0}, 0}};  // the same step after a skipped attempt
  for (const Way way : all_ways)
    for (const auto& [newer, keep] : cases) {
      Scene scene(way, Saved{42, 47, 0}, newer, keep);
      REQUIRE(scene.complete);
      const Tally tally = scene.tally();
      INFO(name_of(way) << ", step " << newer.step << ", keep " << keep << ": " << tally.first);
      CHECK(tally.lost == 0);
      CHECK(tally.refused == 0);
      CHECK(tally.forgotten == 0);
      CHECK(tally.older > 30);
      CHECK(tally.newer > 0);
    }
}

TEST_CASE("once the first save has returned no crash takes it away")
{
  for (const Way way : all_ways) {
    Scene scene(way, std::nullopt, Saved{42, 47, 0});
    REQUIRE(scene.complete);
    const Tally tally = scene.tally();
    INFO(name_of(way) << ": " << tally.first);
    CHECK(tally.refused == 0);
    CHECK(tally.forgotten == 0);
    CHECK(tally.newer > 0);
    CHECK(tally.lost > 0);  // before
  }
}

namespace {

/// Indices of a history's syncs of files whose name ends so, of directories for "/".
std::vector<std::size_t> syncs_of(const History& history, const std::string& ending,
                                  std::optional<int> process = std::nullopt)
{
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < history.operations().size(); ++i) {
    const Operation& o = history.operations()[i];
    const bool kind = ending == "/" ? o.kind == OperationKind::sync_directory
                                    : o.kind == OperationKind::sync && o.path.ends_with(ending);
    if (kind && o.process == process.value_or(o.process)) found.push_back(i);
  }
  return found;
}

bool harmless(const Tally& tally) { return tally.lost + tally.refused + tally.forgotten == 0; }

}  // namespace

// Each sync of a save is left out in turn: what the states say then is what the sync is for.
TEST_CASE("a sync that is left out is noticed, or another one stands for it")
{
  for (const Way way : all_ways) {
    Scene scene(way, Saved{42, 47, 0}, Saved{43, 48, 0});
    REQUIRE(scene.complete);
    const History& history = *scene.history;
    const auto without = [&](std::size_t sync) { return scene.tally(history.without(sync)); };
    INFO(name_of(way));

    // The last one of rank 0, over all of the file: without it a final name may stand over
    // anything, and the save has returned for nothing.
    const auto of_rank_0 = syncs_of(history, ".tmp", 0);
    REQUIRE(of_rank_0.size() >= 2);
    const Tally last = without(of_rank_0.back());
    CHECK(last.refused > 50);
    CHECK(last.forgotten > 50);
    // Every torn file is seen by its hashes and the older one taken: as long as there is one.
    CHECK(last.lost == 0);

    // That of rank 1, after its blocks: rank 0's may be made on another node.
    const auto of_rank_1 = syncs_of(history, ".tmp", 1);
    REQUIRE(of_rank_1.size() == 1);
    const Tally payload = without(of_rank_1[0]);
    CHECK(payload.refused > 10);
    CHECK(payload.forgotten > 10);
    CHECK(payload.lost == 0);

    // On one node rank 0's last one covers it; its own first one it covers anyway.
    CHECK(harmless(scene.tally(history.on_one_node().without(of_rank_1[0]))));
    CHECK(harmless(without(of_rank_0.front())));

    // The pointer decides nothing while files are named after their steps.
    const auto pointer = syncs_of(history, ".latest");
    REQUIRE(pointer.size() == 1);
    CHECK(harmless(without(pointer[0])));

    // The directory: one sync for the checkpoint's name, one for the pointer's. Names become
    // durable in their order, so either stands for the other, and none for both.
    const auto directory = syncs_of(history, "/");
    REQUIRE(directory.size() == 2);
    CHECK(harmless(without(directory[0])));
    CHECK(harmless(without(directory[1])));
    const Tally neither = scene.tally(history.without(directory[1]).without(directory[0]));
    CHECK(neither.forgotten > 0);
    CHECK(neither.lost == 0);
  }
}

// What hashes cannot mend: the older one was removed, and the newer one is torn.
TEST_CASE("with retention the last sync of the file is what saves the run")
{
  Scene scene(Way::skeleton, Saved{42, 47, 0}, Saved{43, 48, 0}, 1);
  REQUIRE(scene.complete);
  const auto syncs = syncs_of(*scene.history, ".tmp", 0);
  REQUIRE(syncs.size() >= 2);
  CHECK(scene.tally(scene.history->without(syncs.back())).lost > 10);
}

TEST_CASE("a save removes what a dead one left, MPI-IO's own files too, and nothing else")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, 1, {}, small_model());
  advance(job, 42, 47);
  const std::string dead = ".step-000000000041.h5.0123abcd";
  const std::vector<std::string> others = {".hidden", ".step-000000000041.h5",
                                           ".step-000000000041.h5.0123abcx.tmp"};
  if (world_rank() == 0) {
    for (const char* ending : {".tmp", ".tmp.latest", ".lock", ".tmp.locktest.1"})
      write_file(directory.path() / (dead + ending), "left");
    write_file(directory.path() / ".step-000000000040.h5.89abcdef.tmp.locktest.0", "");
    for (const std::string& name : others) write_file(directory.path() / name, "not ours");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  save_checkpoint(job.coordinator.boundary(), directory.path());
  std::vector<std::string> expected = others;
  expected.insert(expected.end(), {"latest", "step-000000000042.h5"});
  std::sort(expected.begin(), expected.end());
  CHECK(files_in(directory.path()) == expected);
  job.close();
}
