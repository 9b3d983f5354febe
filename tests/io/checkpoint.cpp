// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a checkpoint refuses, how a failed save leaves things, which file is the latest, and that
// other programs can read it. Every refusal is the same typed error on all ranks.
#include "tutti/checkpoint.hpp"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "places.hpp"
#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

/// Byte of the file where the bits of this value lie; npos if there are none.
std::size_t place_of(const std::string& bytes, float value)
{
  char pattern[sizeof value];
  std::memcpy(pattern, &value, sizeof value);
  return bytes.find(std::string(pattern, sizeof value));
}

class Limit {
 public:
  Limit(int resource, rlim_t value) : resource_(resource)
  {
    getrlimit(resource_, &before_);
    rlimit limit = before_;
    limit.rlim_cur = value;
    setrlimit(resource_, &limit);
  }
  ~Limit() { setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  int resource_;
  rlimit before_ = {};
};

std::string refusal(Job& job, const fs::path& file, const RestoreOptions& options = {})
{
  return message_of<CheckpointError>([&] { job.restore(file, options); });
}

}  // namespace

TEST_CASE("a save gives a file of its step and a pointer, and nothing else")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path made = directory.path() / "a/b";
  CHECK(job.save(made) == made / "step-000000000042.h5");
  CHECK(files_in(made) == std::vector<std::string>{"latest", "step-000000000042.h5"});
  CHECK(bytes_of_file(made / "latest") == "step-000000000042.h5\n");

  // The same step again, as after a skipped attempt: the newer control state replaces it.
  ControlState later = job.coordinator.control();
  later.attempt = 48;
  job.coordinator.resume(later);
  job.save(made);
  CHECK(files_in(made).size() == 2);
  CHECK(job.restore(made / "step-000000000042.h5").control.attempt == 48);
  job.close();
}

TEST_CASE("a flipped bit of the payload is refused and located")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = job.save(directory.path());
  on_rank_zero([&] {
    const std::size_t place = place_of(bytes_of_file(file), value_of("bias", "exp_avg", 12345));
    REQUIRE(place != std::string::npos);
    flip(file, place, 3);
  });
  const std::string message = refusal(job, file);
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "/optimizers/adam/exp_avg block "));
  CHECK(contains(message, "parameter 'bias'"));
  CHECK(contains(message, file.string()));

  // Without verification the flipped value comes in: the hash is what found it.
  CHECK_NOTHROW(job.restore(file, {.verify = Verify::off}));
  const std::size_t wrong = job.wrong();
  std::size_t total = 0;
  MPI_Allreduce(&wrong, &total, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
  CHECK(total == 1);
  job.close();
}

TEST_CASE("no flipped bit anywhere in the file changes what is restored")
{
  const SharedDirectory directory;
  // Small, so that metadata is a good part of it.
  Job job(MPI_COMM_WORLD, degree(), {}, {{"w", {5000}, Precision::fp32, Placement::split, 0}});
  job.fill();
  const fs::path file = job.save(directory.path());
  std::uint64_t size = world_rank() == 0 ? fs::file_size(file) : 0;
  MPI_Bcast(&size, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  int refused = 0, harmless = 0;
  for (std::uint64_t trial = 0; trial < 400; ++trial) {
    // Half of the trials in the last part: tables, views, texts.
    const std::uint64_t range = trial % 2 == 0 ? size : std::min<std::uint64_t>(size, 16384);
    const std::uint64_t byte = size - 1 - mix64(trial) % range;
    on_rank_zero([&] { flip(file, byte, static_cast<int>(trial % 8)); });
    const std::string message = refusal(job, file);
    INFO("byte " << byte << ": " << message);
    REQUIRE(same_on_all_ranks(message));
    REQUIRE(on_all_ranks(!contains(message, "another type of error")));
    if (message.empty()) REQUIRE(on_all_ranks(job.wrong() == 0));  // a gap, or a view
    (message.empty() ? harmless : refused) += 1;
    on_rank_zero([&] { flip(file, byte, static_cast<int>(trial % 8)); });
  }
  CHECK(refused > 100);
  CHECK(H5Fget_obj_count(H5F_OBJ_ALL, H5F_OBJ_ALL) == 0);  // a refusal leaves nothing open
  CHECK(refusal(job, file).empty());
  job.close();
}

TEST_CASE("a file that is cut, unfinished, foreign or from the future is refused")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = job.save(directory.path());
  const fs::path bad = directory.path() / "bad.h5";
  const std::string good = world_rank() == 0 ? bytes_of_file(file) : "";

  for (const std::size_t left : {std::size_t{1}, std::size_t{16384}, std::size_t{1000000}}) {
    on_rank_zero([&] { write_file(bad, good.substr(0, good.size() - left)); });
    const std::string message = refusal(job, bad);
    CHECK(same_on_all_ranks(message));
    CHECK(contains(message, "truncated file"));
  }
  on_rank_zero([&] { write_file(bad, "not a checkpoint"); });
  CHECK(contains(refusal(job, bad), "refused"));
  CHECK(same_on_all_ranks(refusal(job, bad)));

  const auto altered = [&](const std::function<void(hid_t)>& alter) {
    on_rank_zero([&] {
      write_file(bad, good);
      const hid_t opened = H5Fopen(bad.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
      REQUIRE(opened >= 0);
      alter(opened);
      REQUIRE(H5Fclose(opened) >= 0);
    });
    const std::string message = refusal(job, bad);
    CHECK(same_on_all_ranks(message));
    return message;
  };
  CHECK(contains(altered([](hid_t f) { H5Adelete(f, "format_version"); }), "did not end"));
  CHECK(contains(altered([](hid_t f) { H5Ldelete(f, "certificate", H5P_DEFAULT); }),
                 "the certificate is missing"));
  CHECK(contains(altered([](hid_t f) {
                   const std::uint32_t version = checkpoint_format_version + 1;
                   const hid_t attribute = H5Aopen(f, "format_version", H5P_DEFAULT);
                   H5Awrite(attribute, H5T_NATIVE_UINT32, &version);
                   H5Aclose(attribute);
                 }),
                 "its format version 2 is newer than 1"));
  const std::string missing =
      message_of<IoError>([&] { job.restore(directory.path() / "none.h5"); });
  CHECK(same_on_all_ranks(missing));
  CHECK(contains(missing, "rank 0: cannot open"));
  CHECK(contains(missing, "No such file"));
  job.close();
}

TEST_CASE("another model is refused by name, with all differences")
{
  const SharedDirectory directory;
  Job saved(MPI_COMM_WORLD, degree());
  saved.fill();
  const fs::path file = saved.save(directory.path());
  saved.close();

  auto specs = model();
  specs[0].shape = {37, 701};
  specs[2].precision = Precision::bf16;
  specs[3].name = "other";
  Job job(MPI_COMM_WORLD, degree(), {}, specs);
  const std::string message = refusal(job, file);
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "adam/embed has shape [37, 700] there and [37, 701] here"));
  CHECK(contains(message, "adam/bias has precision fp16 there and bf16 here"));
  CHECK(contains(message, "parameter adam/other is missing"));
  CHECK(contains(message, "parameter adam/scalar is extra"));
  CHECK(job.body.restored_calls() == 0);
  if (!job.body.owns_nothing()) CHECK(std::isnan(job.body.array(0)[0]));  // nothing was touched
  job.close();

  Topology topology(MPI_COMM_WORLD, {.model_parallel = degree()});
  Shelf adam(topology, "adam", set_of(model()), {"master", "momentum"});
  Shelf sgd(topology, "sgd", set_of({{"head", {7}}}), {"master"});
  Participant* const participants[] = {&adam, &sgd};
  const std::string arrays =
      message_of<CheckpointError>([&] { restore_checkpoint(file, topology, participants); });
  CHECK(same_on_all_ranks(arrays));
  CHECK(contains(arrays, "array momentum of optimizer 'adam' is missing"));
  CHECK(contains(arrays, "array exp_avg_sq of optimizer 'adam' is extra"));
  CHECK(contains(arrays, "optimizer 'sgd' is missing"));
  CHECK(contains(arrays, "optimizer 'momentum/head' is extra"));
  topology.close();
}

TEST_CASE("a checkpoint of other data is refused")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = job.save(directory.path());
  const std::string message = refusal(job, file, {.epoch_samples = 999});
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "its epoch has 1000 samples and this run's has 999"));
  job.close();
}

TEST_CASE("parameters in another order and placement get their own values and clocks")
{
  const SharedDirectory directory;
  Job saved(MPI_COMM_WORLD, degree());
  saved.fill();
  const fs::path file = saved.save(directory.path());
  saved.close();

  auto specs = model();
  std::reverse(specs.begin(), specs.end());
  specs[0].split_axis = 2;                     // cube
  specs[5].placement = Placement::split;       // bias
  specs[7].placement = Placement::replicated;  // embed
  Job job(MPI_COMM_WORLD, degree(), {}, specs);
  const ControlState control = job.restore(file).control;
  CHECK(job.wrong() == 0);
  const ControlState before = some_control(specs.size() + 1);
  REQUIRE(control.clocks.size() == before.clocks.size());
  for (std::size_t p = 0; p < specs.size(); ++p)
    CHECK(control.clocks[p] == before.clocks[specs.size() - 1 - p]);
  CHECK(control.clocks.back() == before.clocks.back());
  job.close();
}

TEST_CASE("state that may not be saved is refused on all ranks and nothing is written")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const int culprit = world_size() - 1;
  const auto refused = [&](std::size_t array, float value) {
    const std::string message = message_of<CheckpointError>([&] {
      if (world_rank() == culprit) std::swap(job.body.array(array)[17], value);
      try {
        job.save(directory.path());
      } catch (...) {
        if (world_rank() == culprit) std::swap(job.body.array(array)[17], value);
        throw;
      }
    });
    CHECK(same_on_all_ranks(message));
    CHECK(contains(message, "rank " + std::to_string(culprit) + ": nothing was saved (adam/"));
    CHECK(files_in(directory.path()).empty());
    return message;
  };
  CHECK(contains(refused(0, std::numeric_limits<float>::quiet_NaN()), "has master = "));
  CHECK(contains(refused(1, -std::numeric_limits<float>::infinity()), "has exp_avg = -inf"));
  CHECK(contains(refused(2, -1.0f), "has exp_avg_sq = -1"));
  if (world_size() > 1) {
    ControlState control = job.coordinator.control();
    if (world_rank() == culprit) control.loss_scale *= 2;
    job.coordinator.resume(control);
    const std::string message = message_of<CheckpointError>([&] { job.save(directory.path()); });
    CHECK(same_on_all_ranks(message));
    CHECK(contains(message, "control state is not that of rank 0"));
    CHECK(files_in(directory.path()).empty());
  }
  job.close();
}

TEST_CASE("a configuration that is not JSON is refused on all ranks")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const std::string message = message_of<InvalidArgument>(
      [&] { save_checkpoint(job.coordinator.boundary(), directory.path(), {"steps = 3"}); });
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "not JSON"));
  CHECK(files_in(directory.path()).empty());
  job.close();
}

TEST_CASE("a write limit on any one rank is one error on all and the old checkpoint stays")
{
  std::signal(SIGXFSZ, SIG_IGN);
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path old = job.save(directory.path());
  job.restore(old);  // leaves its mark
  const auto before = files_in(directory.path());
  std::uint64_t size = world_rank() == 0 ? fs::file_size(old) : 0;
  MPI_Bcast(&size, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);

  ControlState next = job.coordinator.control();
  next.step = 43;
  job.coordinator.resume(next);
  for (int limited = 0; limited < world_size(); ++limited)
    // Early in the payload; for rank 0 also when only the metadata is left to write.
    for (const std::uint64_t limit : {std::uint64_t{65536}, size - 8192}) {
      if (limit != 65536 && limited != 0) continue;
      INFO("rank " << limited << " writes up to byte " << limit);
      std::string message;
      {
        std::unique_ptr<Limit> lowered;
        if (world_rank() == limited) lowered = std::make_unique<Limit>(RLIMIT_FSIZE, limit);
        message = message_of<IoError>([&] { job.save(directory.path()); });
      }
      INFO(message);
      CHECK(same_on_all_ranks(message));
      CHECK(contains(message, "rank " + std::to_string(limited) + ": cannot "));
      CHECK(contains(message, directory.path().string()));
      CHECK(contains(message, "File too large, errno 27"));
      CHECK(files_in(directory.path()) == before);
      CHECK(job.restore(old).control.step == 42);
      MPI_Barrier(MPI_COMM_WORLD);
    }
  job.coordinator.resume(next);
  CHECK(job.restore(job.save(directory.path())).control.step == 43);  // it can go on
  job.close();
}

TEST_CASE("an exception in any phase of a save is one error on all ranks and harms nothing")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path old = job.save(directory.path());
  const auto before = files_in(directory.path());
  const std::string bytes = bytes_of_file(old);
  ControlState next = job.coordinator.control();
  next.step = 43;
  job.coordinator.resume(next);

  const auto save_that_throws = [&](Phase where, int culprit) {
    CheckpointOptions options;
    options.reached = [&](Phase phase) {
      if (phase == where && world_rank() == culprit) throw std::runtime_error("planned");
    };
    const std::string message = message_of<IoError>(
        [&] { save_checkpoint(job.coordinator.boundary(), directory.path(), options); });
    INFO(message);
    CHECK(same_on_all_ranks(message));
    CHECK(contains(message, "rank " + std::to_string(culprit) + ": "));
    CHECK(contains(message, "planned"));
    return message;
  };
  for (const Phase phase : {Phase::save_prepare, Phase::save_payload, Phase::save_sync})
    for (int culprit = 0; culprit < world_size(); ++culprit) {
      INFO(name_of(phase) << " on rank " << culprit);
      save_that_throws(phase, culprit);
      CHECK(files_in(directory.path()) == before);
    }
  for (const Phase phase : {Phase::save_complete, Phase::save_publish}) {
    INFO(name_of(phase));
    save_that_throws(phase, 0);
    CHECK(files_in(directory.path()) == before);
  }
  CHECK(bytes_of_file(old) == bytes);
  MPI_Barrier(MPI_COMM_WORLD);

  // From here on the new file has its name: the error says so, and both are there.
  CHECK(contains(save_that_throws(Phase::save_pointer, 0), "is complete, but its pointer is not"));
  CHECK(files_in(directory.path()).size() == before.size() + 1);
  CHECK(bytes_of_file(directory.path() / "latest") == "step-000000000042.h5\n");
  CHECK(latest_checkpoint(directory.path(), job.topology) ==
        directory.path() / "step-000000000043.h5");
  CHECK(contains(save_that_throws(Phase::save_retain, 0), "is complete, but older ones"));
  CHECK(bytes_of_file(directory.path() / "latest") == "step-000000000043.h5\n");
  CHECK(job.restore(old).control.step == 42);

  next.step = 44;
  job.coordinator.resume(next);
  CHECK(job.restore(job.save(directory.path())).control.step == 44);  // it can go on
  job.close();
}

TEST_CASE("a place that cannot be written is one error on all ranks")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = directory.path() / "file";
  on_rank_zero([&] { write_file(file, "in the way"); });
  for (const fs::path& place : {file, file / "below"}) {
    const std::string message = message_of<IoError>([&] { job.save(place); });
    CHECK(same_on_all_ranks(message));
    CHECK(contains(message, "rank 0: cannot create directory " + place.string()));
    CHECK(contains(message, "errno 20"));
  }
  CHECK(bytes_of_file(file) == "in the way");
  job.close();
}

TEST_CASE("a rank that cannot open the file makes all ranks refuse it")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = job.save(directory.path());
  const int blind = world_size() - 1;
  std::string message;
  {
    std::unique_ptr<Limit> lowered;
    const int next = open("/dev/null", O_RDONLY);  // the lowest free one: none below is
    close(next);
    if (world_rank() == blind)
      lowered = std::make_unique<Limit>(RLIMIT_NOFILE, static_cast<rlim_t>(next));
    message = message_of<IoError>([&] { job.restore(file); });
  }
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "rank " + std::to_string(blind) + ": cannot open " + file.string()));
  CHECK_NOTHROW(job.restore(file));
  job.close();
}

TEST_CASE("the latest checkpoint is the newest complete file, whatever the pointer says")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  CHECK(!latest_checkpoint(directory.path() / "none", job.topology));
  CHECK(!latest_checkpoint(directory.path(), job.topology));
  const fs::path first = job.save(directory.path());
  ControlState next = job.coordinator.control();
  next.step = 100;
  job.coordinator.resume(next);
  const fs::path second = job.save(directory.path());
  on_rank_zero([&] { write_file(directory.path() / "latest", first.filename().string() + "\n"); });
  CHECK(latest_checkpoint(directory.path(), job.topology) == second);

  on_rank_zero([&] {
    fs::resize_file(second, fs::file_size(second) - 1);
    write_file(directory.path() / "step-000000000500.h5", "");
    write_file(directory.path() / ".step-000000000900.h5.0badcafe.tmp", bytes_of_file(first));
  });
  std::vector<std::string> refused;
  CHECK(latest_checkpoint(directory.path(), job.topology, &refused) == first);
  REQUIRE(refused.size() == 2);
  CHECK(contains(refused[0], "step-000000000500.h5"));
  CHECK(contains(refused[1], "step-000000000100.h5"));
  CHECK(contains(refused[1], "truncated"));

  on_rank_zero([&] { fs::remove(first); });
  CHECK(!latest_checkpoint(directory.path(), job.topology, &refused));
  job.close();
}

TEST_CASE("other programs see every parameter with its shape and values")
{
  int has_h5py = 0;
  if (world_rank() == 0)
    has_h5py = std::system((python + " -c 'import h5py' 2>/dev/null").c_str()) == 0;
  MPI_Bcast(&has_h5py, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (!has_h5py) {
    WARN("the views were not read by h5py (it is not installed); install python3-h5py");
    return;
  }
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = job.save(directory.path());
  on_rank_zero([&] {
    // Name, shape and bits as the definition has them, for the script to compare.
    std::ofstream expected(directory.path() / "expected");
    const auto put = [&](const std::string& name, const std::vector<std::size_t>& shape,
                         const std::vector<std::string>& arrays) {
      for (const std::string& array : arrays) {
        expected << name << ' ' << array << ' ';
        std::size_t elements = 1;
        for (const std::size_t extent : shape) {
          expected << extent << ',';
          elements *= extent;
        }
        std::vector<float> values(elements);
        for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(name, array, i);
        std::string flat = name + "." + array + ".bin";
        std::replace(flat.begin(), flat.end(), '/', '_');
        expected << ' ' << flat << '\n';
        write_file(directory.path() / flat,
                   {reinterpret_cast<const char*>(values.data()), elements * sizeof(float)});
      }
    };
    for (const ParameterSpec& spec : model())
      put(spec.name, spec.shape.empty() ? std::vector<std::size_t>{1} : spec.shape,
          {"master", "exp_avg", "exp_avg_sq", "ema"});
    put("head", {7}, {"master", "exp_avg"});
    expected.close();
    const std::string command = python + " " + views_script + " " + file.string() + " " +
                                directory.path().string() + " " + io_readme;
    CHECK(std::system(command.c_str()) == 0);
  });
  job.close();
}
