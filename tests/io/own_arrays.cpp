// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A code's own arrays and scalars in a checkpoint: whoever held which part when it was saved, every
// rank of any other job gets the part that it asks for, bit for bit. One run of 8 ranks holds all
// smaller jobs.
#include <hdf5.h>

#include "format.hpp"
#include "shelf.hpp"
#include "tutti/checkpoint_file.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

/// Part `rank` of `ranks` of an array, cut along `axis`; with `halo` it reaches into its
/// neighbours.
ArrayPart part_of(const std::vector<std::size_t>& shape, std::size_t axis, int rank, int ranks,
                  std::size_t halo = 0)
{
  ArrayPart part{std::vector<std::size_t>(shape.size(), 0), shape};
  const auto cut = [&](int r) {
    return shape[axis] * static_cast<std::size_t>(r) / static_cast<std::size_t>(ranks);
  };
  std::size_t begin = cut(rank), end = cut(rank + 1);
  begin -= std::min(begin, halo);
  end = std::min(shape[axis], end + halo);
  part.begin[axis] = begin;
  part.extent[axis] = end - begin;
  return part;
}

std::uint64_t word(const std::string& name, std::size_t index)
{
  return mix64(hash_of(name), index);
}

/// Row-major index in the whole array of element `e` of a part.
std::size_t global_index(const ArrayPart& part, const std::vector<std::size_t>& shape,
                         std::size_t e)
{
  std::size_t index = 0, stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index += (part.begin[axis] + e % part.extent[axis]) * stride;
    e /= part.extent[axis];
    stride *= shape[axis];
  }
  return index;
}

const std::vector<std::size_t> field_shape = {37, 211}, cube_shape = {5, 3, 700},
                               bytes_shape = {100001};

/// A simulation's data: a field cut by rows or columns, a cube cut along its middle axis (with more
/// than three ranks some hold none of it), bytes on the last rank alone, a time and a count.
struct Simulation {
  Simulation(int rank, int ranks, std::size_t field_axis, std::size_t halo = 0)
      : field_part(part_of(field_shape, field_axis, rank, ranks, halo)),
        cube_part(part_of(cube_shape, 1, rank, ranks, halo)),
        bytes_part{{0}, {rank == ranks - 1 ? bytes_shape[0] : 0}}
  {
    field.resize(field_part.elements());
    cube.resize(cube_part.elements());
    bytes.resize(bytes_part.elements());
    own.add("field", field.data(), field_shape, field_part);
    own.add("a/cube", cube.data(), cube_shape, cube_part);
    own.add("bytes", bytes.data(), bytes_shape, bytes_part);
    own.add_scalar("time", &time);
    own.add_scalar("count", &count);
  }
  void fill()
  {
    for (std::size_t e = 0; e < field.size(); ++e)
      field[e] = std::bit_cast<double>(word("field", global_index(field_part, field_shape, e)));
    for (std::size_t e = 0; e < cube.size(); ++e)
      cube[e] = static_cast<std::int64_t>(word("cube", global_index(cube_part, cube_shape, e)));
    for (std::size_t e = 0; e < bytes.size(); ++e)
      bytes[e] = static_cast<std::uint8_t>(word("bytes", e));
    time = 0.1;
    count = -7;
  }
  std::size_t wrong() const
  {
    std::size_t count_wrong = 0;
    for (std::size_t e = 0; e < field.size(); ++e)
      count_wrong += std::bit_cast<std::uint64_t>(field[e]) !=
                     word("field", global_index(field_part, field_shape, e));
    for (std::size_t e = 0; e < cube.size(); ++e)
      count_wrong += static_cast<std::uint64_t>(cube[e]) !=
                     word("cube", global_index(cube_part, cube_shape, e));
    for (std::size_t e = 0; e < bytes.size(); ++e)
      count_wrong += bytes[e] != static_cast<std::uint8_t>(word("bytes", e));
    return count_wrong + (time != 0.1) + (count != -7);
  }

  ArrayPart field_part, cube_part, bytes_part;
  std::vector<double> field;
  std::vector<std::int64_t> cube;
  std::vector<std::uint8_t> bytes;
  double time = 0;
  std::int32_t count = 0;
  OwnArrays own;
};

enum class Way { mpiio, skeleton, background };

std::filesystem::path save_on(int ranks, Way way, std::size_t field_axis,
                              const std::filesystem::path& directory)
{
  MPI_Comm part = first_ranks(ranks);
  if (part != MPI_COMM_NULL) {
    Job job(part, 1);
    job.fill();
    Simulation simulation(world_rank(), ranks, field_axis);
    simulation.fill();
    CheckpointOptions options;
    options.configuration = some_configuration;
    options.own = &simulation.own;
    options.io = way == Way::skeleton ? CheckpointIo::skeleton : CheckpointIo::mpiio;
    if (way == Way::background) {
      CheckpointWriter writer(job.topology, directory, options);
      writer.start(job.coordinator.boundary());
      std::fill(simulation.field.begin(), simulation.field.end(), 0.0);  // the code goes on
      simulation.time = 99;
      writer.finish();
    } else {
      save_checkpoint(job.coordinator.boundary(), directory, options);
    }
    job.close();
    MPI_Comm_free(&part);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return directory / "step-000000000042.h5";
}

void restore_on(int ranks, std::size_t field_axis, std::size_t halo,
                const std::filesystem::path& file)
{
  MPI_Comm part = first_ranks(ranks);
  if (part != MPI_COMM_NULL) {
    Job job(part, 1);
    Simulation simulation(world_rank(), ranks, field_axis, halo);
    RestoreOptions options;
    options.own = &simulation.own;
    job.restore(file, options);
    CHECK(job.wrong() == 0);
    CHECK(simulation.wrong() == 0);
    job.close();
    MPI_Comm_free(&part);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace

TEST_CASE("own arrays come back at any rank count, cut in any way")
{
  REQUIRE(on_all_ranks(world_size() == 8));
  for (const int saved_on : {1, 3, 4, 8})
    for (const Way way : {Way::mpiio, Way::skeleton, Way::background}) {
      INFO("saved on " << saved_on << " ranks, way " << static_cast<int>(way));
      const SharedDirectory directory;
      const auto file = save_on(saved_on, way, 0, directory.path());
      restore_on(saved_on, 0, 0, file);
      restore_on(5, 1, 0, file);
      restore_on(2, 0, 3, file);  // with halos: parts overlap
      if (way == Way::mpiio) restore_on(8, 1, 1, file);
      if (way == Way::mpiio) restore_on(1, 0, 0, file);
    }
}

TEST_CASE("the ways to write make the same file")
{
  std::vector<std::string> bytes;
  for (const Way way : {Way::mpiio, Way::skeleton, Way::background}) {
    const SharedDirectory directory;
    const auto file = save_on(4, way, 1, directory.path());
    if (world_rank() == 0) bytes.push_back(bytes_of_file(file));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (world_rank() == 0) {
    CHECK(bytes[0] == bytes[1]);
    CHECK(bytes[0] == bytes[2]);
  }
}

TEST_CASE("what two ranks write is cut between pages of the file")
{
  for (const Way way : {Way::mpiio, Way::skeleton}) {
    const SharedDirectory directory;
    const auto file = save_on(4, way, 0, directory.path());
    if (world_rank() == 0)
      for (const detail::ArrayPlace& place : detail::read_metadata(file).places)
        CHECK(place.data % 4096 == 0);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_CASE("people find own arrays and scalars as datasets of their real shape")
{
  const SharedDirectory directory;
  const auto file = save_on(3, Way::mpiio, 1, directory.path());
  if (world_rank() == 0) {
    const CheckpointFile checkpoint(file);
    REQUIRE(checkpoint.own().size() == 5);
    const auto find = [&](const std::string& name) {
      for (const auto& own : checkpoint.own())
        if (own.name == name) return own;
      return CheckpointFile::Own{};
    };
    CHECK(find("field").shape == field_shape);
    CHECK(find("a/cube").type == ElementType::int64);
    const hid_t handle = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    REQUIRE(handle >= 0);
    const auto read = [&](const std::string& name, hid_t type, void* values) {
      const hid_t dataset = H5Dopen2(handle, find(name).dataset.c_str(), H5P_DEFAULT);
      REQUIRE(dataset >= 0);
      REQUIRE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
      H5Dclose(dataset);
    };
    std::vector<double> field(field_shape[0] * field_shape[1]);
    read("field", H5T_NATIVE_DOUBLE, field.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < field.size(); ++i)
      wrong += std::bit_cast<std::uint64_t>(field[i]) != word("field", i);
    CHECK(wrong == 0);
    double time = 0;
    read("time", H5T_NATIVE_DOUBLE, &time);
    CHECK(time == 0.1);
    H5Fclose(handle);
  }
}

TEST_CASE("own data that no file may hold is refused on all ranks, and nothing is written")
{
  const SharedDirectory directory;
  Job job(MPI_COMM_WORLD, 1);
  job.fill();
  std::vector<double> values(40, 1);
  double time = 1;
  const auto refusal = [&](const OwnArrays& own) {
    CheckpointOptions options;
    options.own = &own;
    return message_of<Error>(
        [&] { save_checkpoint(job.coordinator.boundary(), directory.path(), options); });
  };
  const std::size_t rank = static_cast<std::size_t>(world_rank());

  OwnArrays overlap;
  overlap.add("x", values.data(), {80}, {{rank == 5 ? 49 : 10 * rank}, {10}});
  std::string said = refusal(overlap);
  CHECK(same_on_all_ranks(said));
  CHECK(contains(said, "'x'"));
  CHECK(contains(said, "ranks 4 and 5 overlap"));

  OwnArrays gap;
  gap.add("x", values.data(), {80}, {{10 * rank}, {rank == 2 ? 9u : 10u}});
  said = refusal(gap);
  CHECK(same_on_all_ranks(said));
  CHECK(contains(said, "79 of 80"));

  OwnArrays drifted;
  if (rank == 3) time = 2;
  drifted.add_scalar("time", &time);
  said = refusal(drifted);
  CHECK(same_on_all_ranks(said));
  CHECK(contains(said, "rank 3"));
  CHECK(contains(said, "own scalar"));

  OwnArrays other;
  other.add(rank == 6 ? "y" : "x", values.data(), {80}, {{10 * rank}, {10}});
  said = refusal(other);
  CHECK(same_on_all_ranks(said));
  CHECK(contains(said, "list of own arrays"));

  CHECK(on_all_ranks(files_in(directory.path()).empty()));
  job.close();
}

TEST_CASE("own data of another shape, type or name is refused by name; damage is located")
{
  const SharedDirectory directory;
  const auto file = save_on(8, Way::mpiio, 0, directory.path());
  Job job(MPI_COMM_WORLD, 1);
  const auto refusal = [&](const OwnArrays& own, Verify verify = Verify::full) {
    RestoreOptions options;
    options.own = &own;
    options.verify = verify;
    return message_of<CheckpointError>([&] { job.restore(file, options); });
  };
  Simulation simulation(world_rank(), 8, 0);
  OwnArrays other;
  std::vector<float> values(1);
  other.add("field", values.data(), {37}, {{0}, {1}});
  other.add("new", values.data(), {1}, {{0}, {1}});
  double count = 0;
  other.add_scalar("count", &count);
  std::string said = refusal(other);
  CHECK(same_on_all_ranks(said));
  for (const char* part :
       {"'new' is missing", "'a/cube' is extra", "'bytes' is extra", "scalar 'time' is extra",
        "'field' is float64 there and float32 here", "'field' has shape [37, 211] there",
        "'count' is int32 there and float64 here"})
    CHECK(contains(said, part));

  CHECK(message_of<Error>([&] { job.restore(file); }).empty());  // they may be left alone
  CHECK(refusal(simulation.own).empty());

  // One bit of the field.
  if (world_rank() == 0) {
    std::string bytes = bytes_of_file(file);
    const double wanted = std::bit_cast<double>(word("field", 5000));
    const auto at = bytes.find(std::string(reinterpret_cast<const char*>(&wanted), sizeof wanted));
    REQUIRE(at != bytes.npos);
    bytes[at + 3] = static_cast<char>(bytes[at + 3] ^ 16);
    write_file(file, bytes);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  said = refusal(simulation.own);
  CHECK(same_on_all_ranks(said));
  CHECK(contains(said, "own array 'field'"));
  const CheckpointVerification found = verify_checkpoint(file, MPI_COMM_WORLD);
  CHECK(found.damaged == 1);
  job.close();
}
