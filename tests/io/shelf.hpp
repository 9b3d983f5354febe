// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A participant that only holds state: arrays by a shard plan, filled with values that are a
// function of what and where they are, so that a restore is checked against the definition and not
// against another file. It takes no part in steps.
#pragma once

#include <unistd.h>

#include <bit>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "mpi_test.hpp"
#include "tutti/checkpoint.hpp"
#include "tutti/digest.hpp"

namespace tutti::test {

/// The first `size` ranks; MPI_COMM_NULL on the others.
inline MPI_Comm first_ranks(int size)
{
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() < size ? 0 : MPI_UNDEFINED, world_rank(), &part);
  return part;
}

/// Any finite bits (also subnormal and negative zero), never less than zero in exp_avg_sq.
inline float value_of(const std::string& parameter, const std::string& array, std::size_t index)
{
  auto bits = static_cast<std::uint32_t>(mix64(mix64(hash_of(parameter), hash_of(array)), index));
  if ((bits & 0x7f800000) == 0x7f800000) bits &= ~0x00800000u;
  if (array == "exp_avg_sq") bits &= 0x7fffffff;
  return std::bit_cast<float>(bits);
}

class Shelf : public Participant {
 public:
  Shelf(const Topology& topology, std::string name, ParameterSet set,
        std::vector<std::string> arrays, const std::vector<double>& weights = {})
      : topology_(topology),
        name_(std::move(name)),
        set_(std::move(set)),
        plan_(set_, topology.data_parallel(), topology.model_parallel(), weights),
        names_(std::move(arrays))
  {
    const std::size_t blocks = plan_.shard(topology.rank()).size();
    for (std::size_t a = 0; a < names_.size(); ++a)
      data_.emplace_back(blocks * block_elements, std::numeric_limits<float>::quiet_NaN());
  }

  void fill()
  {
    each_element(
        [&](std::size_t a, std::size_t at, const std::string& parameter, std::size_t g,
            bool padding) { data_[a][at] = padding ? 0 : value_of(parameter, names_[a], g); });
  }

  /// Elements, padding included, that do not have the bits that fill() gives them.
  std::size_t wrong() const
  {
    std::size_t count = 0;
    each_element([&](std::size_t a, std::size_t at, const std::string& parameter, std::size_t g,
                     bool padding) {
      const float right = padding ? 0 : value_of(parameter, names_[a], g);
      count += std::bit_cast<std::uint32_t>(data_[a][at]) != std::bit_cast<std::uint32_t>(right);
    });
    return count;
  }

  bool owns_nothing() const { return data_.empty() || data_[0].empty(); }
  std::size_t arrays() const { return data_.size(); }
  std::vector<float>& array(std::size_t a) { return data_[a]; }
  int restored_calls() const { return restored_calls_; }

  const std::string& name() const override { return name_; }
  std::size_t parameters() const override { return set_.size(); }
  std::string parameter_name(std::size_t p) const override { return set_[p].name; }
  Policy::Betas betas(std::size_t) const override { return {}; }
  std::uint64_t configuration_hash() const override { return set_.hash(); }
  std::uint64_t plan_hash() const override { return plan_.hash(); }
  void open() override {}
  void accumulate(std::uint32_t) override {}
  void close() override {}
  void exchange() override {}
  void inspect(Ballot&, std::span<std::uint8_t>) override {}
  void stage(const Update&) override {}
  void gather() override {}
  void confirm(Confirm&) override {}
  void publish() noexcept override {}
  void discard() noexcept override {}
  StateView state() override
  {
    StateView view{&set_, &plan_, {}};
    for (std::size_t a = 0; a < names_.size(); ++a)
      view.arrays.push_back({names_[a], data_[a].data()});
    return view;
  }
  void restored() override
  {
    MPI_Barrier(topology_.world());
    ++restored_calls_;
  }

 private:
  template <class Visit>
  void each_element(Visit visit) const
  {
    const SlotLayout& slot = plan_.layout(topology_.model_rank());
    const auto& shard = plan_.shard(topology_.rank());
    for (std::size_t b = 0; b < shard.size(); ++b) {
      const std::uint32_t p = slot.parameter_of(shard[b]);
      const Piece& piece = slot.piece(p);
      for (std::size_t i = 0; i < block_elements; ++i) {
        const std::size_t e = (shard[b] - piece.first_block) * block_elements + i;
        const bool padding = e >= piece.elements;
        for (std::size_t a = 0; a < names_.size(); ++a)
          visit(a, b * block_elements + i, set_[p].name, padding ? 0 : piece.global_index(e),
                padding);
      }
    }
  }

  const Topology& topology_;
  std::string name_;
  ParameterSet set_;
  ShardPlan plan_;
  std::vector<std::string> names_;
  std::vector<std::vector<float>> data_;
  int restored_calls_ = 0;
};

/// Pieces that end inside a block, axes shorter than the degree, splits along every axis.
inline std::vector<ParameterSpec> model()
{
  return {{"embed", {37, 700}, Precision::fp16, Placement::split, 0},
          {"norm/scale", {9000}, Precision::fp32},
          {"bias", {20000}, Precision::fp16},
          {"scalar", {}, Precision::bf16},
          {"out", {16, 2100}, Precision::bf16, Placement::split, 1},
          {"row", {1, 5000}, Precision::fp32, Placement::split, 0},
          {"thin", {5000, 3}, Precision::fp32, Placement::split, 1},
          {"cube", {3, 5, 1400}, Precision::fp16, Placement::split, 1}};
}

inline ParameterSet set_of(const std::vector<ParameterSpec>& specs)
{
  ParameterSet set;
  for (const ParameterSpec& spec : specs) set.add(spec);
  return set;
}

inline ControlState some_control(std::size_t clocks)
{
  ControlState control;
  control.step = 42;
  control.attempt = 47;
  control.loss_scale = 1024.5;
  control.growth_tracker = 7;
  control.samples = 420;
  control.skips[1] = 5;
  control.ledger.epoch_samples = 1000;
  control.ledger.next = 470;
  control.ledger.committed = {{0, 400}, {410, 430}};
  control.ledger.dropped = {{430, 460}};
  control.ledger.replay = {{400, 410}, {460, 470}};
  control.offenders = {{400, 2}};
  for (std::size_t i = 0; i < clocks; ++i)
    control.clocks.push_back({i + 1, std::pow(0.9, i + 1), std::pow(0.999, i + 1)});
  return control;
}

inline const char* const some_configuration = R"({"steps":42,"word":"Größe"})";

inline CoordinatorOptions epoch_of(std::uint64_t samples)
{
  CoordinatorOptions options;
  options.epoch_samples = samples;
  return options;
}

/// A job on a communicator: two optimizers under one coordinator.
struct Job {
  Job(MPI_Comm communicator, int model_parallel, const std::vector<double>& weights = {},
      const std::vector<ParameterSpec>& specs = model(), Precision head = Precision::fp32)
      : topology(communicator, {.model_parallel = model_parallel}),
        body(topology, "adam", set_of(specs), {"master", "exp_avg", "exp_avg_sq", "ema"}, weights),
        last(topology, "momentum/head", set_of({{"head", {7}, head}}), {"master", "exp_avg"},
             weights),
        participants{&body, &last},
        coordinator(topology, participants, epoch_of(1000))
  {
  }
  void fill()
  {
    body.fill();
    last.fill();
    coordinator.resume(some_control(body.parameters() + last.parameters()));
  }
  std::size_t wrong() const { return body.wrong() + last.wrong(); }
  std::filesystem::path save(const std::filesystem::path& directory)
  {
    return save_checkpoint(coordinator.boundary(), directory,
                           {.configuration = some_configuration});
  }
  RestoredControl restore(const std::filesystem::path& file, const RestoreOptions& options = {})
  {
    return restore_checkpoint(file, topology, participants, options);
  }
  void close()
  {
    coordinator.close();
    topology.close();
  }

  Topology topology;
  Shelf body, last;
  std::vector<Participant*> participants;
  Coordinator coordinator;
};

/// A new directory that all ranks of MPI_COMM_WORLD know; removed by rank 0 at the end.
class SharedDirectory {
 public:
  explicit SharedDirectory(
      const std::filesystem::path& base = std::filesystem::temp_directory_path())
  {
    std::string name(256, '\0');
    if (world_rank() == 0) {
      name.replace(0, 0, (base / "tutti-io-XXXXXX").string());
      name.resize(256, '\0');
      if (mkdtemp(name.data()) == nullptr) name[0] = '\0';
    }
    MPI_Bcast(name.data(), 256, MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = name.c_str();
  }
  ~SharedDirectory()
  {
    if (std::uncaught_exceptions() == 0) MPI_Barrier(MPI_COMM_WORLD);
    std::error_code ignored;
    if (world_rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// What `work` throws as an `Expected`; "" if it throws nothing, the type's word if another.
template <class Expected, class Work>
std::string message_of(Work work)
{
  try {
    work();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type of error: ") + error.what();
  }
  return {};
}

/// Collective over MPI_COMM_WORLD.
inline bool same_on_all_ranks(const std::string& text)
{
  std::uint64_t mine = hash_of(text);
  std::uint64_t first = mine;
  MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  return on_all_ranks(mine == first);
}

inline bool contains(const std::string& text, const std::string& part)
{
  return text.find(part) != text.npos;
}

/// Some degree above 1, where the ranks allow it.
inline int degree() { return world_size() % 2 == 0 ? 2 : 1; }

/// Rank 0 does something to the disk; then all ranks see it.
inline void on_rank_zero(const std::function<void()>& work)
{
  if (world_rank() == 0) work();
  MPI_Barrier(MPI_COMM_WORLD);
}

inline void flip(const std::filesystem::path& file, std::uint64_t byte, int bit = 0)
{
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(byte));
  const char value = static_cast<char>(stream.get() ^ (1 << bit));
  stream.seekp(static_cast<std::streamoff>(byte));
  stream.put(value);
}

inline std::string bytes_of_file(const std::filesystem::path& path)
{
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes)
{
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::vector<std::string> files_in(const std::filesystem::path& directory)
{
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tutti::test
