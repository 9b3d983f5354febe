// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The ways in which blocks reach the file, all with the same bytes; saves that are written while
// training goes on; what they leave when they fail; and which checkpoints stay.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <condition_variable>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "shelf.hpp"
#include "tutti/device.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

/// Uneven, and from three ranks on some own nothing.
std::vector<double> uneven()
{
  std::vector<double> weights;
  for (int rank = 0; rank < world_size(); ++rank) weights.push_back(rank % 3 == 2 ? 0 : 1 + rank);
  return weights;
}

/// A state that every committed step changes.
class MovingShelf : public Shelf {
 public:
  using Shelf::Shelf;
  void publish() noexcept override
  {
    for (float& value : array(0)) value = -value - 1;
  }
};

/// Memory that the host cannot touch: what is handed out lies in pages without access, and only
/// copy() knows what is meant.
class FarDevice : public Device {
 public:
  ~FarDevice() override
  {
    for (const auto& [begin, region] : regions_) munmap(begin, region.bytes);
  }
  float* hide(float* real, std::size_t bytes)
  {
    for (const auto& [begin, region] : regions_)
      if (region.real == reinterpret_cast<char*>(real)) return reinterpret_cast<float*>(begin);
    const std::size_t room = std::max<std::size_t>(bytes, 1);
    void* far = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (far == MAP_FAILED) throw std::bad_alloc();
    regions_[static_cast<char*>(far)] = {reinterpret_cast<char*>(real), room};
    return static_cast<float*>(far);
  }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "far"; }
  void* allocate(std::size_t) override { throw std::bad_alloc(); }
  void deallocate(void*) noexcept override {}
  void copy(void* to, const void* from, std::size_t bytes) override
  {
    std::memcpy(near(static_cast<char*>(to)),
                near(const_cast<char*>(static_cast<const char*>(from))), bytes);
  }
  BlockScan accumulate(float*, const void*, Precision, std::size_t, bool) override { return {}; }
  BlockScan scan(const void*, Precision, std::size_t) override { return {}; }
  void sum_blocks(const SumBlocks&) override {}
  void adam_blocks(const AdamBlocks&) override {}
  void convert(void*, Precision, const float*, std::size_t) override {}
  void digest_blocks(std::uint64_t*, const void*, Precision, std::size_t) override {}

 private:
  struct Region {
    char* real = nullptr;
    std::size_t bytes = 0;
  };
  char* near(char* pointer) const
  {
    const auto after = regions_.upper_bound(pointer);
    if (after == regions_.begin()) return pointer;
    const auto& [begin, region] = *std::prev(after);
    return pointer < begin + region.bytes ? region.real + (pointer - begin) : pointer;
  }
  std::map<char*, Region> regions_;
};

class FarShelf : public Shelf {
 public:
  using Shelf::Shelf;
  StateView state() override
  {
    StateView view = Shelf::state();
    for (std::size_t a = 0; a < view.arrays.size(); ++a)
      view.arrays[a].data = device_.hide(view.arrays[a].data, array(a).size() * sizeof(float));
    view.device = &device_;
    return view;
  }

 private:
  FarDevice device_;
};

template <class AnyShelf>
struct JobOf {
  explicit JobOf(const std::vector<double>& weights = {})
      : topology(MPI_COMM_WORLD, {.model_parallel = degree()}),
        body(topology, "adam", set_of(model()), {"master", "exp_avg", "exp_avg_sq"}, weights),
        participants{&body},
        coordinator(topology, participants, epoch_of(1000))
  {
  }
  void fill(std::uint64_t step = 42)
  {
    body.fill();
    ControlState control = some_control(body.parameters());
    control.step = step;
    coordinator.resume(control);
  }
  Outcome step()
  {
    Window window = coordinator.open_window();
    window.add_micro_batch(0.5, world_rank() == 0 ? 1 : 0);
    return coordinator.step(window);
  }
  /// Steps until the background save has ended on all ranks.
  Outcome step_to_the_end_of_the_save()
  {
    Outcome outcome = step();
    while (outcome.save == SaveState::pending) outcome = step();
    return outcome;
  }
  fs::path save(const fs::path& directory, const CheckpointOptions& options = {})
  {
    return save_checkpoint(coordinator.boundary(), directory, options);
  }
  void close()
  {
    coordinator.close();
    topology.close();
  }
  Topology topology;
  AnyShelf body;
  std::vector<Participant*> participants;
  Coordinator coordinator;
};

/// Held by a thread of a save until the test opens it.
class Gate {
 public:
  void open()
  {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass()
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

CheckpointOptions held_at(const std::shared_ptr<Gate>& gate, Phase where = Phase::save_payload)
{
  CheckpointOptions options;
  options.reached = [gate, where](Phase phase) {
    if (phase == where) gate->pass();
  };
  return options;
}

void track(Coordinator& coordinator, CheckpointWriter& writer)
{
  coordinator.track_save(writer.id(), [&] { return writer.report(); });
}

class FileLimit {
 public:
  FileLimit(bool here, rlim_t bytes)
  {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    if (here) setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_ = {};
};

std::string word(const std::string& text, int rank)
{
  return "rank " + std::to_string(rank) + ": " + text;
}

}  // namespace

TEST_CASE("every way to write gives the same file, byte for byte")
{
  const SharedDirectory directory;
  CheckpointOptions by_mpiio, by_pwrite;
  by_pwrite.io = CheckpointIo::skeleton;
  std::vector<fs::path> files;
  const auto save_all = [&](auto& job, const std::string& kind) {
    job.fill();
    files.push_back(job.save(directory.path() / (kind + "-mpiio"), by_mpiio));
    files.push_back(job.save(directory.path() / (kind + "-pwrite"), by_pwrite));
    CheckpointWriter writer(job.topology, directory.path() / (kind + "-thread"));
    for (int time = 0; time < 2; ++time) {  // the second one into the memory of the first
      writer.start(job.coordinator.boundary());
      files.push_back(writer.finish());
    }
    job.close();
  };
  JobOf<Shelf> near(uneven());
  save_all(near, "host");
  JobOf<FarShelf> far(uneven());
  save_all(far, "device");
  REQUIRE(files.size() == 8);
  const std::string bytes = bytes_of_file(files[0]);
  CHECK(bytes.size() > 1000000);
  for (const fs::path& file : files) {
    INFO(file.string());
    CHECK(bytes == bytes_of_file(file));
  }
  JobOf<Shelf> restored;
  CHECK(restore_checkpoint(files.back(), restored.topology, restored.participants).control ==
        some_control(restored.body.parameters()));
  CHECK(restored.body.wrong() == 0);
  restored.close();
}

TEST_CASE("a background save holds one step while training goes on")
{
  const SharedDirectory directory;
  JobOf<MovingShelf> job(uneven());
  job.fill();
  const fs::path expected = job.save(directory.path() / "now");

  const int last = world_size() - 1;
  const auto gate = std::make_shared<Gate>();
  CheckpointWriter writer(job.topology, directory.path() / "later", held_at(gate));
  CHECK(writer.id() == 0);
  CHECK(writer.report().state == SaveState::none);
  writer.start(job.coordinator.boundary());
  CHECK(writer.in_flight());
  track(job.coordinator, writer);
  CHECK(job.coordinator.control().pending_save == writer.id());

  for (int i = 0; i < 3; ++i) CHECK(job.step().save == SaveState::pending);
  if (world_rank() != last) gate->open();
  for (int i = 0; i < 3; ++i)
    CHECK(job.step().save == SaveState::pending);  // the last one holds it
  CHECK(job.coordinator.control().step == 48);
  CHECK(latest_checkpoint(directory.path() / "later", job.topology) == std::nullopt);
  gate->open();
  const Outcome outcome = job.step_to_the_end_of_the_save();
  CHECK(outcome.save == SaveState::done);
  CHECK(!outcome.save_failure.exists());
  const fs::path file = writer.finish();
  CHECK(!writer.in_flight());
  CHECK(job.coordinator.control().pending_save == 0);
  CHECK(job.step().save == SaveState::none);  // said once

  CHECK(file == directory.path() / "later/step-000000000042.h5");
  CHECK(bytes_of_file(file) == bytes_of_file(expected));
  CHECK(files_in(directory.path() / "later") ==
        std::vector<std::string>{"latest", "step-000000000042.h5"});
  const std::uint64_t moved = state_digest(job.participants, job.topology.world());
  const auto restored = restore_checkpoint(file, job.topology, job.participants);
  CHECK(job.body.wrong() == 0);
  CHECK(restored.control == some_control(job.body.parameters()));
  CHECK(restored.control.pending_save == 0);
  CHECK(restored.state_digest != moved);
  job.close();
}

TEST_CASE("what fails in the thread of one rank is one error on all and training goes on")
{
  std::signal(SIGXFSZ, SIG_IGN);
  const SharedDirectory directory;
  JobOf<MovingShelf> job;
  job.fill();
  const fs::path old = job.save(directory.path());
  const auto before = files_in(directory.path());
  const std::string bytes = bytes_of_file(old);

  for (int limited = 0; limited < world_size(); ++limited) {
    INFO("rank " << limited << " may not write");
    const auto gate = std::make_shared<Gate>();
    job.step();
    CheckpointWriter writer(job.topology, directory.path(), held_at(gate));
    writer.start(job.coordinator.boundary());
    track(job.coordinator, writer);
    std::string message;
    {
      const FileLimit limit(world_rank() == limited, 1);
      gate->open();
      const Outcome outcome = job.step_to_the_end_of_the_save();
      CHECK(outcome.committed());
      CHECK(outcome.save == SaveState::failed);
      CHECK(outcome.save_failure.phase == static_cast<std::uint32_t>(Phase::save_payload));
      CHECK(outcome.save_failure.rank == static_cast<std::uint32_t>(limited));
      CHECK(outcome.save_failure.code == EFBIG);
      message = message_of<IoError>([&] { writer.finish(); });
    }
    INFO(message);
    CHECK(same_on_all_ranks(message));
    CHECK(contains(message, word("cannot write " + directory.path().string(), limited)));
    CHECK(contains(message, "File too large, errno 27"));
    CHECK(files_in(directory.path()) == before);
    CHECK(bytes_of_file(old) == bytes);
    CHECK(job.step().committed());
    MPI_Barrier(MPI_COMM_WORLD);
  }
  CheckpointWriter writer(job.topology, directory.path());
  writer.start(job.coordinator.boundary());
  track(job.coordinator, writer);
  CHECK(job.step_to_the_end_of_the_save().save == SaveState::done);
  CHECK(latest_checkpoint(directory.path(), job.topology) == writer.finish());
  job.close();
}

TEST_CASE("an exception in any phase of a background save is one error on all ranks")
{
  const SharedDirectory directory;
  JobOf<MovingShelf> job;
  job.fill();
  job.save(directory.path());
  const auto before = files_in(directory.path());
  job.step();
  for (const Phase where : {Phase::save_prepare, Phase::save_payload, Phase::save_sync,
                            Phase::save_complete, Phase::save_publish})
    for (int culprit = 0; culprit < (where < Phase::save_complete ? world_size() : 1); ++culprit) {
      INFO(name_of(where) << " on rank " << culprit);
      CheckpointOptions options;
      options.reached = [&](Phase phase) {
        if (phase == where && world_rank() == culprit) throw std::runtime_error("planned");
      };
      CheckpointWriter writer(job.topology, directory.path(), options);
      const std::string message = message_of<IoError>([&] {
        writer.start(job.coordinator.boundary());
        writer.finish();
      });
      CHECK(same_on_all_ranks(message));
      CHECK(contains(message, word("planned", culprit)));
      CHECK(!writer.in_flight());
      CHECK(files_in(directory.path()) == before);
    }
  CHECK(job.step().committed());
  job.close();
}

TEST_CASE("a background save of values that state cannot have is refused by name")
{
  const SharedDirectory directory;
  JobOf<MovingShelf> job;
  job.fill();
  const int culprit = world_size() - 1;
  if (world_rank() == culprit) job.body.array(2)[17] = -1;
  CheckpointWriter writer(job.topology, directory.path());
  writer.start(job.coordinator.boundary());
  if (world_rank() == culprit) job.body.array(2)[17] = 1;  // too late: the copy is judged
  track(job.coordinator, writer);
  const Outcome outcome = job.step_to_the_end_of_the_save();
  CHECK(outcome.save == SaveState::failed);
  CHECK(outcome.save_failure.code == 0);
  const std::string message = message_of<CheckpointError>([&] { writer.finish(); });
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, word("nothing was saved (adam/", culprit)));
  CHECK(contains(message, "has exp_avg_sq = -1"));
  CHECK(files_in(directory.path()).empty());
  job.close();
}

TEST_CASE("only one save is in flight")
{
  const SharedDirectory directory;
  JobOf<Shelf> job;
  job.fill();
  CheckpointWriter writer(job.topology, directory.path());
  CHECK(contains(message_of<InvalidArgument>([&] { writer.finish(); }), "none is in flight"));
  CHECK(writer.drain(std::chrono::seconds(1)) == std::nullopt);
  writer.start(job.coordinator.boundary());
  const auto refused = [&](const std::function<void()>& work) {
    return contains(message_of<InvalidArgument>(work), "another one is in flight");
  };
  CHECK(refused([&] { writer.start(job.coordinator.boundary()); }));
  CHECK(refused([&] { writer.save(job.coordinator.boundary()); }));
  CHECK(fs::exists(writer.finish()));
  CHECK(fs::exists(writer.save(job.coordinator.boundary())));
  job.close();
}

TEST_CASE("at the end a save in flight is published, or given up when it takes too long")
{
  const SharedDirectory directory;
  JobOf<MovingShelf> job;
  job.fill();
  const auto gate = std::make_shared<Gate>();
  const int slow = world_size() - 1;
  CheckpointOptions options;
  options.reached = [gate, slow](Phase phase) {
    if (phase == Phase::save_payload && world_rank() == slow) gate->pass();
  };
  CheckpointWriter writer(job.topology, directory.path(), options);
  writer.start(job.coordinator.boundary());
  track(job.coordinator, writer);
  CHECK(job.step().save == SaveState::pending);
  while (world_rank() != slow && writer.report().state == SaveState::pending)
    std::this_thread::yield();
  const std::string message =
      message_of<IoError>([&] { writer.drain(std::chrono::milliseconds(1)); });
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, word("the background save of step 42 was given up", slow)));
  CHECK(files_in(directory.path()).empty());
  job.coordinator.forget_save();
  CHECK(job.step().save == SaveState::none);

  // The thread may wake up whenever it likes, and the next save does not wait for it.
  writer.start(job.coordinator.boundary());
  gate->open();
  CHECK(writer.drain(std::chrono::seconds(60)) == directory.path() / "step-000000000044.h5");
  CHECK(files_in(directory.path()) == std::vector<std::string>{"latest", "step-000000000044.h5"});
  job.close();
}

TEST_CASE("a writer that goes away takes its save along")
{
  const SharedDirectory directory;
  JobOf<Shelf> job;
  job.fill();
  {
    CheckpointWriter writer(job.topology, directory.path());
    writer.start(job.coordinator.boundary());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  CHECK(files_in(directory.path()).empty());
  job.close();
}

TEST_CASE("a full file system is one error on all ranks, and what was there stays")
{
  const SharedDirectory directory;
  const fs::path small = directory.path() / "small";
  int mounted = 0;
  if (world_rank() == 0) {
    fs::create_directory(small);
    mounted = mount("tmpfs", small.c_str(), "tmpfs", 0, "size=64m") == 0;
  }
  MPI_Bcast(&mounted, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (!mounted) {
    WARN("no file system was filled (mounting one needs root)");
    return;
  }
  JobOf<MovingShelf> job;
  job.fill();
  const fs::path old = job.save(small);
  const std::string bytes = bytes_of_file(old);
  const auto before = files_in(small);
  job.step();
  // Too little for the payload, then only for what rank 0 adds at the end.
  for (const std::uintmax_t left : {std::uintmax_t{4} << 20, std::uintmax_t{20} << 20}) {
    on_rank_zero([&] {
      fs::remove(small / "filler");
      const std::uintmax_t free = fs::space(small).available;
      REQUIRE(free > left);
      std::ofstream(small / "filler") << std::string(free - left, 'x');
    });
    for (const CheckpointIo io : {CheckpointIo::mpiio, CheckpointIo::skeleton})
      for (const bool background : {false, true}) {
        CheckpointOptions options;
        options.io = io;
        CheckpointWriter writer(job.topology, small, options);
        const std::string message = message_of<IoError>([&] {
          if (background) {
            writer.start(job.coordinator.boundary());
            writer.finish();
          } else {
            writer.save(job.coordinator.boundary());
          }
        });
        INFO(left << " bytes left: " << message);
        CHECK(same_on_all_ranks(message));
        CHECK(contains(message, "rank 0: cannot reserve room for " + small.string()));
        CHECK(contains(message, "No space left on device, errno 28); free space there"));
        CHECK(files_in(small).size() == before.size() + 1);
        CHECK(bytes_of_file(old) == bytes);
        MPI_Barrier(MPI_COMM_WORLD);
      }
  }
  CHECK(job.step().committed());
  on_rank_zero([&] { fs::remove(small / "filler"); });
  job.save(small);
  on_rank_zero([&] { umount2(small.c_str(), MNT_DETACH); });
  job.close();
}

// --- what stays ----------------------------------------------------------------------------------

TEST_CASE("only the newest checkpoints stay, and those that are pinned or proven")
{
  const SharedDirectory directory;
  JobOf<Shelf> job;
  const auto save = [&](std::uint64_t step, std::uint64_t keep) {
    job.fill(step);
    CheckpointOptions options;
    options.keep = keep;
    job.save(directory.path(), options);
    std::vector<std::string> steps;
    for (const std::string& name : files_in(directory.path()))
      if (name.ends_with(".h5")) steps.push_back(std::to_string(std::stoi(name.substr(5, 12))));
    MPI_Barrier(MPI_COMM_WORLD);
    return steps;
  };
  const auto file = [&](int step) {
    return directory.path() / ("step-0000000000" + std::to_string(step) + ".h5");
  };
  const auto mark_verified = [&](int step, const std::string& root) {
    on_rank_zero([&] { write_file(file(step).string() + ".verified", root + "\n"); });
  };
  const auto root_of = [&](int step) {
    const std::string bytes = bytes_of_file(file(step));
    const std::string key = "\"root\":\"";
    return bytes.substr(bytes.find(key) + key.size(), 16);
  };
  using Steps = std::vector<std::string>;
  CHECK(save(10, 0) == Steps{"10"});
  CHECK(save(11, 0) == Steps{"10", "11"});
  CHECK(save(12, 2) == Steps{"11", "12"});

  on_rank_zero([&] { write_file(file(11).string() + ".pin", ""); });
  CHECK(save(13, 1) == Steps{"11", "13"});
  CHECK(save(14, 1) == Steps{"11", "14"});

  // The newest verified one stays until a newer one is verified, and takes its marker along.
  mark_verified(14, root_of(14));
  CHECK(save(15, 1) == Steps{"11", "14", "15"});
  CHECK(save(16, 1) == Steps{"11", "14", "16"});
  mark_verified(16, root_of(14));  // not its own root
  CHECK(save(17, 1) == Steps{"11", "14", "17"});
  CHECK(!fs::exists(file(16).string() + ".verified"));
  mark_verified(17, root_of(17));
  CHECK(save(18, 1) == Steps{"11", "17", "18"});
  CHECK(!fs::exists(file(14).string() + ".verified"));

  // What is not complete is neither counted nor touched.
  on_rank_zero([&] { fs::resize_file(file(18), fs::file_size(file(18)) - 1); });
  CHECK(save(19, 2) == Steps{"11", "17", "18", "19"});

  // A run that went back: what was just saved stays, though later steps are there.
  CHECK(save(12, 2) == Steps{"11", "12", "17", "18", "19"});
  CHECK(save(13, 1) == Steps{"11", "13", "17", "18"});

  // In the background, too.
  job.fill(20);
  CheckpointOptions options;
  options.keep = 1;
  CheckpointWriter writer(job.topology, directory.path(), options);
  writer.start(job.coordinator.boundary());
  CHECK(writer.drain(std::chrono::seconds(60)) == file(20));
  CHECK(!fs::exists(file(13)));
  CHECK(fs::exists(file(17)));
  job.close();
}

TEST_CASE("what a killed save left is removed by the next one, what a living one holds is not")
{
  const SharedDirectory directory;
  JobOf<Shelf> job;
  job.fill();
  const std::string dead = ".step-000000000041.h5.0badcafe",
                    living = ".step-000000000040.h5.00000001",
                    bare = ".step-000000000039.h5.00000002";
  int lock = -1;
  on_rank_zero([&] {
    for (const std::string& name : {dead + ".tmp", dead + ".tmp.latest", dead + ".lock",
                                    living + ".tmp", living + ".lock", bare + ".tmp"})
      write_file(directory.path() / name, "left");
    write_file(directory.path() / ".step-of-mine.tmp", "mine");
    lock = open((directory.path() / (living + ".lock")).c_str(), O_RDWR);
    REQUIRE(flock(lock, LOCK_EX | LOCK_NB) == 0);
  });
  job.save(directory.path());
  CHECK(files_in(directory.path()) == std::vector<std::string>{living + ".lock", living + ".tmp",
                                                               ".step-of-mine.tmp", "latest",
                                                               "step-000000000042.h5"});
  MPI_Barrier(MPI_COMM_WORLD);
  if (lock >= 0) close(lock);
  job.save(directory.path());
  CHECK(files_in(directory.path()) ==
        std::vector<std::string>{".step-of-mine.tmp", "latest", "step-000000000042.h5"});
  job.close();
}
