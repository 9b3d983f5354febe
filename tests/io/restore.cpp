// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a restore takes and refuses: damage of every kind, the next older file, parts of a model,
// weights alone, another precision, arrays on a device; and the reader that tools use.
#include <hdf5.h>

#include <functional>

#include "far_device.hpp"
#include "forge.hpp"
#include "format.hpp"
#include "shelf.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

/// Where an array of the file lies, by its name in the manifest.
detail::ArrayPlace place_of(const fs::path& file, std::size_t optimizer, std::size_t array)
{
  const detail::Metadata metadata = detail::read_metadata(file);
  const auto manifest = detail::manifest_from_json(metadata.manifest);
  for (std::size_t o = 0; o < optimizer; ++o) array += manifest.optimizers[o].arrays.size();
  return metadata.places[array];
}

std::string refusal(Job& job, const fs::path& file, const RestoreOptions& options = {})
{
  return message_of<DamagedCheckpoint>([&] { job.restore(file, options); });
}

fs::path save_step(Job& job, const fs::path& directory, std::uint64_t step)
{
  ControlState control = some_control(job.body.parameters() + 1);
  control.step = step;
  control.attempt = step + 5;
  job.coordinator.resume(control);
  return job.save(directory);
}

/// A text dataset of one file into another.
void copy_text(const fs::path& from, const fs::path& to, const char* name)
{
  const hid_t source = H5Fopen(from.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t target = H5Fopen(to.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  REQUIRE((source >= 0 && target >= 0));
  REQUIRE(H5Ldelete(target, name, H5P_DEFAULT) >= 0);
  REQUIRE(H5Ocopy(source, name, target, name, H5P_DEFAULT, H5P_DEFAULT) >= 0);
  H5Fclose(source);
  REQUIRE(H5Fclose(target) >= 0);
}

/// A shelf whose arrays are far away.
class FarShelf : public Shelf {
 public:
  FarShelf(const Topology& topology, FarDevice& device, std::string name, ParameterSet set,
           const std::vector<std::string>& arrays)
      : Shelf(topology, std::move(name), std::move(set), arrays), device_(device)
  {
    for (std::size_t a = 0; a < arrays.size(); ++a)
      far_.push_back(static_cast<float*>(device.allocate(array(a).size() * sizeof(float))));
  }
  ~FarShelf() override
  {
    for (float* memory : far_) device_.deallocate(memory);
  }
  StateView state() override
  {
    StateView view = Shelf::state();
    for (std::size_t a = 0; a < far_.size(); ++a) view.arrays[a].data = far_[a];
    view.device = &device_;
    return view;
  }
  void fetch()
  {
    for (std::size_t a = 0; a < far_.size(); ++a)
      device_.copy(array(a).data(), far_[a], array(a).size() * sizeof(float));
  }

 private:
  FarDevice& device_;
  std::vector<float*> far_;
};

}  // namespace

TEST_CASE("a sampled verification finds mixed files, a full one every flipped bit")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree(), {}, {{"w", {900000}}});
  job.fill();
  const fs::path file = job.save(directory.path());
  const std::size_t blocks = (900000 + block_elements - 1) / block_elements;
  std::uint64_t data = 0;
  if (world_rank() == 0) data = place_of(file, 0, 1).data;
  MPI_Bcast(&data, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);

  std::size_t found = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto byte = data + b * detail::block_bytes + 100;  // a low bit of a value
    on_rank_zero([&] { flip(file, byte); });
    if (b % 40 == 7) CHECK(contains(refusal(job, file), "exp_avg block " + std::to_string(b)));
    const bool sampled = !refusal(job, file, {.verify = Verify::sampled}).empty();
    if (b == 0 || b + 1 == blocks) CHECK(sampled);
    found += sampled;
    CHECK(refusal(job, file, {.verify = Verify::off}).empty());
    on_rank_zero([&] { flip(file, byte); });
  }
  CHECK(found > blocks / 32);
  CHECK(found < blocks / 8);
  CHECK(refusal(job, file, {.verify = Verify::sampled}).empty());

  // Half of an array from another time, as after a crash of something that writes in place.
  const std::string part(blocks / 2 * detail::block_bytes, 'x');
  on_rank_zero([&] { patch(file, data + part.size() / 2, part.data(), part.size()); });
  CHECK(contains(refusal(job, file, {.verify = Verify::sampled}), "exp_avg block "));
  job.close();
}

TEST_CASE("the newest checkpoint that does not verify is passed over, once and twice")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  std::vector<fs::path> files;
  for (const std::uint64_t step : {10, 20, 30})
    files.push_back(save_step(job, directory.path(), step));

  std::vector<std::string> refused;
  const auto restore = [&] {
    refused.clear();
    return restore_latest(directory.path(), job.topology, job.participants, {}, &refused);
  };
  REQUIRE(on_all_ranks(restore()->file == files[2]));
  CHECK(refused.empty());

  on_rank_zero(
      [&] { flip(files[2], place_of(files[2], 0, 0).data + 3 * detail::block_bytes + 7); });
  auto found = restore();
  REQUIRE(on_all_ranks(found && found->file == files[1]));
  CHECK(found->restored.control.step == 20);
  CHECK(job.wrong() == 0);
  REQUIRE(refused.size() == 1);
  CHECK(same_on_all_ranks(refused[0]));
  CHECK(contains(refused[0], files[2].string()));
  CHECK(contains(refused[0], "/optimizers/adam/master block 3, of parameter 'embed'"));

  // A second one, broken in its metadata.
  on_rank_zero([&] { fs::resize_file(files[1], fs::file_size(files[1]) - 100); });
  found = restore();
  REQUIRE(on_all_ranks(found && found->file == files[0]));
  CHECK(job.wrong() == 0);
  REQUIRE(refused.size() == 2);
  CHECK(contains(refused[1], files[1].string()));

  on_rank_zero([&] { flip(files[0], place_of(files[0], 1, 1).data + 5); });
  CHECK(on_all_ranks(!restore()));
  REQUIRE(refused.size() == 3);
  CHECK(contains(refused[2], "parameter 'head'"));
  CHECK(same_on_all_ranks(refused[2]));
  job.close();
}

TEST_CASE("a newer checkpoint of another model is refused, not passed over")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  save_step(job, directory.path(), 10);
  Job other(MPI_COMM_WORLD, degree(), {}, {{"other", {9}}});
  other.fill();
  save_step(other, directory.path(), 20);
  const std::string message = message_of<CheckpointError>(
      [&] { restore_latest(directory.path(), job.topology, job.participants); });
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "it is of another model"));
  other.close();
  job.close();
}

TEST_CASE("a mixture of two checkpoints is refused by the certificate")
{
  const SharedDirectory directory;
  // Each of whole blocks, so that both files are laid out alike.
  Job one(MPI_COMM_WORLD, degree(), {}, {{"a", {8192}}, {"b", {4096}}});
  one.fill();
  const fs::path file = save_step(one, directory.path(), 42);
  // The same run at another step: other values and control state under the same names.
  for (std::size_t a = 0; a < 4; ++a)
    for (float& value : one.body.array(a)) value = std::abs(value) / 2;
  const fs::path later = save_step(one, directory.path(), 43);
  const std::string good = world_rank() == 0 ? bytes_of_file(file) : "";
  const fs::path mixed = directory.path() / "mixed.h5";
  const auto mix = [&](const std::function<void(const std::string&)>& work) {
    on_rank_zero([&] {
      write_file(mixed, good);
      work(bytes_of_file(later));
    });
    const std::string message = refusal(one, mixed);
    CHECK(same_on_all_ranks(message));
    return message;
  };
  const std::size_t array_bytes = 3 * detail::block_bytes;
  CHECK(contains(mix([&](const std::string& other) {  // one array
                   patch(mixed, place_of(file, 0, 1).data, &other[place_of(later, 0, 1).data],
                         array_bytes);
                 }),
                 "/optimizers/adam/exp_avg block 0"));
  CHECK(contains(
      mix([&](const std::string& other) {  // one array with its hashes
        patch(mixed, place_of(file, 0, 1).data, &other[place_of(later, 0, 1).data], array_bytes);
        patch(mixed, place_of(file, 0, 1).hashes, &other[place_of(later, 0, 1).hashes], 3 * 8);
      }),
      "/optimizers/adam/hashes/exp_avg does not have its hash"));
  CHECK(contains(mix([&](const std::string&) { copy_text(later, mixed, "control_state"); }),
                 "/control_state does not have its hash"));
  CHECK(contains(mix([&](const std::string&) { copy_text(later, mixed, "certificate"); }),
                 "does not have its hash"));
  one.close();
}

TEST_CASE("a value that state cannot have is refused although every hash is right")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path good = job.save(directory.path());
  const fs::path bad = directory.path() / "bad.h5";
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::size_t array;
    float value;
    const char *name, *said;
  };
  for (const Case& c : {Case{0, nan, "master", "nan"}, Case{1, -inf, "exp_avg", "-inf"},
                        Case{2, -0.5f, "exp_avg_sq", "-0.5"}, Case{3, inf, "ema", "inf"}})
    for (const Verify verify : {Verify::full, Verify::sampled, Verify::off}) {
      on_rank_zero([&] {
        write_file(bad, bytes_of_file(good));
        forge(bad, c.array, 5000, c.value);  // of embed, in its first piece's second block
      });
      const std::string message =
          message_of<IllegalState>([&] { job.restore(bad, {.verify = verify}); });
      INFO(message);
      CHECK(same_on_all_ranks(message));
      CHECK(
          contains(message, std::string("/optimizers/adam/") + c.name + " block 1: element 5000"));
      CHECK(contains(message, std::string("of parameter 'embed' is ") + c.said));
    }
  // What forge() makes is otherwise good: a negative exp_avg may be.
  on_rank_zero([&] {
    write_file(bad, bytes_of_file(good));
    forge(bad, 1, 5000, -0.5f);
  });
  CHECK(contains(refusal(job, bad), "the restored state has digest"));
  CHECK(refusal(job, bad, {.verify = Verify::sampled}).empty());
  job.close();
}

TEST_CASE("arrays on a device are restored by copies alone")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path file = job.save(directory.path());
  Topology topology(MPI_COMM_WORLD, {.model_parallel = degree()});
  FarDevice device;
  FarShelf body(topology, device, "adam", set_of(model()),
                {"master", "exp_avg", "exp_avg_sq", "ema"});
  FarShelf head(topology, device, "momentum/head", set_of({{"head", {7}}}), {"master", "exp_avg"});
  Participant* const participants[] = {&body, &head};
  restore_checkpoint(file, topology, participants);
  body.fetch();
  head.fetch();
  CHECK(body.wrong() == 0);
  CHECK(head.wrong() == 0);
  topology.close();
  job.close();
}

TEST_CASE("every byte of payload, hash tables and texts is watched")
{
  if (world_size() != 1) return;  // nothing here is shared
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, 1, {}, {{"w", {5000}}});
  job.fill();
  const fs::path path = job.save(directory.path());
  const std::string bytes = bytes_of_file(path);
  const detail::Metadata metadata = detail::read_metadata(path);
  const auto manifest = detail::manifest_from_json(metadata.manifest);

  struct Region {
    std::string name;
    std::size_t begin, bytes, stride;
  };
  // The superblock and the object header of the root group, which has the version.
  std::vector<Region> regions = {{"the file's head", 0, 48, 1}};
  const auto add_text = [&](const char* name, const std::string& text) {
    const std::size_t at = bytes.find(text);
    REQUIRE(at != bytes.npos);
    REQUIRE(bytes.find(text, at + 1) == bytes.npos);
    regions.push_back({name, at, text.size(), 1});
  };
  add_text("manifest", metadata.manifest);
  add_text("control state", metadata.control_state);
  add_text("configuration", metadata.configuration);
  add_text("certificate", metadata.certificate);
  std::size_t next = 0;
  for (const auto& optimizer : manifest.optimizers)
    for (const std::string& array : optimizer.arrays) {
      const detail::ArrayPlace place = metadata.places[next++];
      regions.push_back({array, place.data, optimizer.blocks * detail::block_bytes, 61});
      regions.push_back({array + "'s hashes", place.hashes, optimizer.blocks * 8, 1});
    }
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, char value) {
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(value);
    stream.flush();
  };
  for (const Region& region : regions)
    for (std::size_t i = 0; i < region.bytes; i += region.stride) {
      const std::size_t at = region.begin + i;
      put(at, static_cast<char>(bytes[at] ^ (1 << (at % 8))));
      bool found = true;
      try {
        found = verify_checkpoint(path).damaged == 1;
      } catch (const DamagedCheckpoint&) {
      }
      put(at, bytes[at]);
      INFO("byte " << i << " of " << region.name);
      REQUIRE(found);
    }
  CHECK(verify_checkpoint(path).damaged == 0);
  job.close();
}

TEST_CASE("parts of a model are restored and the rest is not touched")
{
  const SharedDirectory directory;
  Job saved(MPI_COMM_WORLD, degree());
  saved.fill();
  const fs::path file = saved.save(directory.path());
  saved.close();

  auto specs = model();
  specs.push_back({"new", {5000}});
  specs[2].shape = {3};  // bias: another model, but not wanted
  Job job(MPI_COMM_WORLD, degree(), {}, specs);
  CHECK(contains(message_of<CheckpointError>([&] { job.restore(file); }), "adam/new is missing"));
  const RestoredControl restored =
      job.restore(file, {.only = {"adam/norm*", "cube", "t?in", "momentum/head/*"}});
  const std::vector<std::string> wanted{"norm/scale", "cube", "thin"};
  std::size_t wrong = 0;
  const auto& plan = *job.body.state().plan;
  const SlotLayout& slot = plan.layout(job.topology.model_rank());
  const auto& shard = plan.shard(job.topology.rank());
  for (std::size_t b = 0; b < shard.size(); ++b) {
    const std::uint32_t p = slot.parameter_of(shard[b]);
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), specs[p].name) != wanted.end();
    const std::size_t begin = (shard[b] - slot.piece(p).first_block) * block_elements;
    for (std::size_t i = 0; i < block_elements; ++i) {
      const float value = job.body.array(2)[b * block_elements + i];
      const bool padding = begin + i >= slot.piece(p).elements;
      const float right =
          padding ? 0
                  : value_of(specs[p].name, "exp_avg_sq", slot.piece(p).global_index(begin + i));
      wrong += is_wanted
                   ? std::bit_cast<std::uint32_t>(value) != std::bit_cast<std::uint32_t>(right)
                   : !std::isnan(value);
    }
  }
  CHECK(wrong == 0);
  CHECK(job.last.wrong() == 0);
  CHECK(restored.control.step == 42);
  for (std::size_t p = 0; p < specs.size(); ++p) {
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), specs[p].name) != wanted.end();
    CHECK(restored.control.clocks[p].steps == (is_wanted ? p + 1 : 0));
  }
  CHECK(restored.control.clocks.back().steps == model().size() + 1);

  const auto refused = [&](std::vector<std::string> only) {
    const std::string message =
        message_of<CheckpointError>([&] { job.restore(file, {.only = std::move(only)}); });
    CHECK(same_on_all_ranks(message));
    return message;
  };
  CHECK(contains(refused({"cube", "nonsense*"}), "no parameter matches 'nonsense*'"));
  CHECK(contains(refused({"n*"}), "parameter adam/new is missing"));
  CHECK(contains(refused({"bias"}), "adam/bias has shape [20000] there and [3] here"));
  // A partial restore has not seen the whole file.
  CHECK(!CheckpointFile(file).is_marked_verified());
  job.close();
}

TEST_CASE("weights alone begin a new run, also of another precision and optimizer")
{
  const SharedDirectory directory;
  const std::vector<ParameterSpec> specs = {{"w", {9, 700}, Precision::fp16, Placement::split, 1},
                                            {"b", {5}, Precision::fp16}};
  Topology topology(MPI_COMM_WORLD, {.model_parallel = degree()});
  Shelf saved(topology, "adam", set_of(specs), {"master", "exp_avg", "exp_avg_sq"});
  Coordinator coordinator(topology, {&saved}, epoch_of(1000));
  saved.fill();
  coordinator.resume(some_control(2));
  const fs::path file = save_checkpoint(coordinator.boundary(), directory.path());
  coordinator.close();

  auto other = specs;
  for (ParameterSpec& spec : other) spec.precision = Precision::bf16;
  Shelf run(topology, "adamw", set_of(other), {"exp_avg", "master", "ema"});
  Participant* const participants[] = {&run};
  const auto restore = [&](const RestoreOptions& options) {
    return restore_checkpoint(file, topology, participants, options);
  };
  const std::string strict = message_of<CheckpointError>([&] { restore({.weights_only = true}); });
  CHECK(same_on_all_ranks(strict));
  CHECK(contains(strict, "adamw/w has precision fp16 there and bf16 here"));
  const RestoredControl restored =
      restore({.epoch_samples = {}, .weights_only = true, .change_precision = true});
  CHECK(restored.step == 42);
  CHECK(restored.control == ControlState{});
  Shelf right(topology, "adamw", set_of(other), {"none", "master", "master"});
  right.fill();
  const auto bits = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  CHECK(bits(run.array(1)) == bits(right.array(1)));
  CHECK(bits(run.array(2)) == bits(right.array(2)));
  CHECK(bits(run.array(0)) == bits(std::vector<float>(run.array(0).size())));

  // All of the state, with the precision changed.
  Shelf whole(topology, "adam", set_of(other), {"master", "exp_avg", "exp_avg_sq"});
  Participant* const all[] = {&whole};
  CHECK(contains(message_of<CheckpointError>([&] { restore_checkpoint(file, topology, all); }),
                 "has precision fp16 there and bf16 here"));
  CHECK(restore_checkpoint(file, topology, all, {.change_precision = true}).control.step == 42);
  CHECK(whole.wrong() == 0);
  topology.close();
}

TEST_CASE("more ranks than blocks")
{
  const SharedDirectory directory;
  Topology topology(MPI_COMM_WORLD);
  Shelf saved(topology, "adam", set_of({{"w", {3}}}), {"master"});
  Coordinator coordinator(topology, {&saved}, epoch_of(1000));
  saved.fill();
  coordinator.resume(some_control(1));
  const fs::path file = save_checkpoint(coordinator.boundary(), directory.path());
  coordinator.close();
  Shelf restored(topology, "adam", set_of({{"w", {3}}}), {"master"});
  Participant* const participants[] = {&restored};
  restore_checkpoint(file, topology, participants);
  CHECK(restored.wrong() == 0);
  CHECK(verify_checkpoint(file, MPI_COMM_WORLD).damaged == 0);
  topology.close();
}

TEST_CASE("a file tells tools what is in it, in global order")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path path = job.save(directory.path());
  const CheckpointFile file(path);
  CHECK(file.step() == 42);
  CHECK(file.attempt() == 47);
  CHECK(file.format_version() == 1);
  CHECK(file.ranks() == world_size());
  CHECK(file.model_parallel() == degree());
  CHECK(file.control() == job.coordinator.control());
  CHECK(file.configuration() == some_configuration);
  CHECK(file.state_digest() == state_digest(job.participants, job.topology.world()));
  REQUIRE(file.optimizers().size() == 2);
  CHECK(file.optimizers()[1].name == "momentum/head");
  const std::size_t places[] = {0, 1, 699, 4095, 4096, 10000};
  for (const ParameterSpec& spec : model()) {
    std::size_t elements = 1;
    for (const std::size_t extent : spec.shape) elements *= extent;
    for (const std::string array : {"master", "exp_avg_sq"})
      for (const std::size_t first : places) {
        if (first > elements) continue;
        std::vector<float> values(std::min<std::size_t>(elements - first, 9001));
        file.read("adam", spec.name, array, first, values);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
          wrong += std::bit_cast<std::uint32_t>(values[i]) !=
                   std::bit_cast<std::uint32_t>(value_of(spec.name, array, first + i));
        CHECK(wrong == 0);
      }
  }
  float one = 0;
  CHECK(contains(message_of<InvalidArgument>([&] {
                   file.read("adam", "bias", "m", 0, {&one, 1});
                 }),
                 "has no array 'm'"));
  CHECK(contains(message_of<InvalidArgument>([&] {
                   file.read("adam", "bias", "master", 20000, {&one, 1});
                 }),
                 "has no elements [20000, 20001)"));
  CHECK(contains(message_of<InvalidArgument>([&] {
                   file.read("sgd", "bias", "m", 0, {&one, 1});
                 }),
                 "has no optimizer 'sgd'"));
  MPI_Barrier(MPI_COMM_WORLD);
  job.close();
}

TEST_CASE("a whole file is verified by all ranks together, and marked")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, degree());
  job.fill();
  const fs::path path = job.save(directory.path());
  CHECK(!CheckpointFile(path).is_marked_verified());
  CheckpointVerification result = verify_checkpoint(path, MPI_COMM_WORLD);
  CHECK(result.damaged == 0);
  CHECK(result.step == 42);
  CHECK(result.blocks == CheckpointFile(path).blocks());
  MPI_Barrier(MPI_COMM_WORLD);
  CHECK(CheckpointFile(path).is_marked_verified());
  CHECK(CheckpointFile(path).find_damage(0, result.blocks).empty());

  // The mark is of that file's certificate: another one under its name does not have it.
  on_rank_zero([&] { write_file(directory.path() / "step-000000000042.h5.pin", ""); });
  CHECK(CheckpointFile(path).is_pinned());
  save_step(job, directory.path(), 42);
  ControlState later = job.coordinator.control();
  later.attempt = 60;
  job.coordinator.resume(later);
  job.save(directory.path());
  CHECK(!CheckpointFile(path).is_marked_verified());

  // In every array one block, at different places.
  on_rank_zero([&] {
    for (std::size_t a = 0; a < 4; ++a)
      flip(path, place_of(path, 0, a).data + (2 + 3 * a) * detail::block_bytes + 11);
  });
  result = verify_checkpoint(path, MPI_COMM_WORLD);
  CHECK(result.damaged == 4);
  REQUIRE(result.reasons.size() == 4);
  const char* const arrays[] = {"master", "exp_avg", "exp_avg_sq", "ema"};
  for (std::size_t a = 0; a < 4; ++a) {
    CHECK(same_on_all_ranks(result.reasons[a]));
    CHECK(contains(result.reasons[a], std::string("/") + arrays[a] + " block " +
                                          std::to_string(2 + 3 * a) + ", of parameter"));
  }
  CHECK(!CheckpointFile(path).is_marked_verified());
  MPI_Barrier(MPI_COMM_WORLD);  // all have looked
  on_rank_zero([&] { fs::resize_file(path, 1000); });
  const std::string message =
      message_of<DamagedCheckpoint>([&] { verify_checkpoint(path, MPI_COMM_WORLD); });
  CHECK(same_on_all_ranks(message));
  CHECK(contains(message, "refused"));
  job.close();
}
