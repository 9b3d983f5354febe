// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A save from the agreed boundary to the published file. `save_checkpoint` reads top to bottom in
// the order in which things become true on disk; each step is a guarded piece of local work or one
// collective, so that whatever fails on one rank, all leave together and the previous checkpoint
// stays.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "block_reader.hpp"
#include "flat_layout.hpp"
#include "format.hpp"
#include "posix_file.hpp"
#include "tutti/checkpoint_save.hpp"
#include "tutti/digest.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;

/// 64 MiB a call: far from the 2 GiB where MPI-IO of Open MPI 4 fails.
constexpr std::size_t most_blocks_a_write = 4096;

/// Blocks of the shard that lie at equal distances in the flat space: one hyperslab.
struct Run {
  std::size_t first = 0;   ///< in the flat space
  std::size_t stride = 1;  ///< blocks; more than 1 where slots own a replicated parameter in turn
  std::size_t count = 0;
  std::size_t in_shard = 0;  ///< of the first one
};

std::vector<Run> runs_of(const std::vector<std::size_t>& flat_blocks)
{
  std::vector<Run> runs;
  for (std::size_t i = 0; i < flat_blocks.size(); ++i) {
    if (!runs.empty() && runs.back().count < most_blocks_a_write) {
      Run& run = runs.back();
      const std::size_t distance = flat_blocks[i] - flat_blocks[i - 1];
      if (run.count == 1) run.stride = distance;
      if (distance == run.stride) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({flat_blocks[i], 1, 1, i});
  }
  return runs;
}

/// One optimizer as this rank holds it and as the file will.
struct Source {
  StateView state;
  FlatLayout layout;
  std::vector<std::size_t> flat_blocks;  ///< of this rank's shard
};

class Save {
 public:
  Save(const CommittedBoundary& boundary, const fs::path& directory,
       const CheckpointOptions& options)
      : boundary_(boundary),
        topology_(boundary.topology()),
        world_(boundary.topology().world()),
        directory_(directory),
        configuration_(options.configuration),
        reached_(options.reached)
  {
  }

  fs::path run()
  {
    on_all_ranks(world_, [&] {
      reach(Phase::save_prepare);
      look_at_state();
    });
    agree();
    on_all_ranks(world_, [&] { hash_and_judge_state(); });
    certificate_.state_digest = state_digest(boundary_.participants(), world_);
    gather_hashes();
    choose_names();
    try {
      on_rank_zero(world_, [&] { create_skeleton(); });
      on_all_ranks(world_, [&] { file_ = PosixFile::open_to_write(temporary_); });
      write_payload();
      on_all_ranks(world_, [&] {
        reach(Phase::save_sync);
        file_.sync();
      });
      on_rank_zero(world_, [&] { complete(); });
      on_all_ranks(world_, [&] { file_.close(); });
      on_rank_zero(world_, [&] { publish(); });
      on_rank_zero(world_, [&] { turn_pointer(); });
      on_rank_zero(world_, [&] { retain(); });
    } catch (...) {
      if (topology_.rank() == 0 && !published_) remove_quietly(temporary_);
      throw;
    }
    return final_;
  }

 private:
  void look_at_state();
  void agree();
  void hash_and_judge_state();
  void judge_block(const Source& source, const StateArray& array, const std::string& optimizer,
                   std::size_t in_shard) const;
  void gather_hashes();
  void choose_names();
  void create_skeleton();
  void write_payload();
  void write_array(hid_t dataset, const Source& source, const StateArray& array,
                   const std::string& path) const;
  void complete();
  void publish();
  void turn_pointer();
  void retain();

  void reach(Phase phase) const
  {
    if (reached_) reached_(phase);
  }

  /// Runs work on a checkpoint that is already published.
  template <class Work>
  void afterwards(const char* what_failed, const Work& work) const
  {
    try {
      work();
    } catch (const std::exception& error) {
      throw IoError(fmt::format("checkpoint {} is complete, but {}: {}", final_.string(),
                                what_failed, error.what()));
    }
  }

  /// An HDF5 failure while writing, as the caller is told.
  [[noreturn]] void fail(const Hdf5Failure& failure) const
  {
    throw IoError(fmt::format(
        "cannot write {} ({}); the previous checkpoint is untouched, check the file system",
        temporary_.string(), failure.what()));
  }

  const CommittedBoundary& boundary_;
  const Topology& topology_;
  MPI_Comm world_;
  fs::path directory_, temporary_, final_;
  std::string configuration_;
  std::function<void(Phase)> reached_;
  Manifest manifest_;
  Certificate certificate_;
  std::vector<Source> sources_;
  std::vector<std::vector<std::uint64_t>> hashes_;  ///< this rank's, by optimizer and array
  std::vector<std::vector<std::uint64_t>> tables_;  ///< rank 0: of the whole file
  PosixFile file_;
  bool published_ = false;
};

/// Flat blocks of a rank's shard, in the shard's order.
std::vector<std::size_t> flat_blocks_of(const ShardPlan& plan, const FlatLayout& layout, int rank)
{
  const int slot = rank % plan.model_parallel();
  const SlotLayout& mine = plan.layout(slot);
  std::vector<std::size_t> blocks;
  blocks.reserve(plan.shard(rank).size());
  for (const std::uint32_t block : plan.shard(rank)) {
    const std::uint32_t p = mine.parameter_of(block);
    blocks.push_back(layout.block(p, slot, block - mine.piece(p).first_block));
  }
  return blocks;
}

// --- what is saved -------------------------------------------------------------------------------

void Save::look_at_state()
{
  configuration_.erase(configuration_.find_last_not_of(" \n") + 1);
  if (!nlohmann::json::accept(configuration_))
    throw InvalidArgument("the configuration for a checkpoint is not JSON; give JSON text or {}");
  manifest_.ranks = topology_.size();
  manifest_.model_parallel = topology_.model_parallel();
  std::set<std::string> names;
  for (Participant* participant : boundary_.participants()) {
    const std::string& name = participant->name();
    if (!names.insert(name).second)
      throw InvalidArgument(fmt::format(
          "two optimizers are named '{}' (names identify them in checkpoints); rename one", name));
    const StateView state = participant->state();
    if (state.parameters == nullptr || state.plan == nullptr ||
        state.plan->size() != topology_.size() ||
        state.plan->model_parallel() != topology_.model_parallel())
      throw InvalidArgument(fmt::format(
          "optimizer '{}' cannot be saved (its shard plan is not one of this job); build it from "
          "the coordinator's topology",
          name));
    ManifestEntry& entry = manifest_.optimizers.emplace_back();
    entry.name = name;
    entry.parameters = *state.parameters;
    for (const StateArray& array : state.arrays) {
      if (array.name.empty() || array.name == "hashes" || array.name.find('/') != array.name.npos ||
          std::count(entry.arrays.begin(), entry.arrays.end(), array.name) != 0)
        throw InvalidArgument(
            fmt::format("optimizer '{}' cannot be saved (an array of state is named '{}'); give "
                        "each a plain name of its own",
                        name, array.name));
      entry.arrays.push_back(array.name);
    }
    FlatLayout layout(*state.parameters, topology_.model_parallel());
    entry.blocks = layout.blocks();
    auto blocks = flat_blocks_of(*state.plan, layout, topology_.rank());
    sources_.push_back({state, std::move(layout), std::move(blocks)});
  }
  assign_paths(manifest_);
}

/// The certificate says that all ranks hold the same; here that becomes true.
void Save::agree()
{
  const ControlState& control = boundary_.control();
  std::uint64_t optimizers = mix64(sources_.size());
  std::uint64_t plans = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const ManifestEntry& entry = manifest_.optimizers[i];
    optimizers = mix64(mix64(optimizers, hash_of(entry.name)), entry.parameters.hash());
    for (const std::string& array : entry.arrays) optimizers = mix64(optimizers, hash_of(array));
    plans = mix64(plans, sources_[i].state.plan->hash());
  }
  struct Field {
    const char* name;
    std::uint64_t value;
  };
  const std::array<Field, 9> fields = {{{"step", control.step},
                                        {"attempt", control.attempt},
                                        {"control state", control.digest()},
                                        {"ledger", control.ledger.digest()},
                                        {"hash of the run", boundary_.configuration_hash()},
                                        {"configuration text", hash_text(configuration_)},
                                        {"directory", hash_text(directory_.string())},
                                        {"optimizers", optimizers},
                                        {"shard plan", plans}}};
  std::array<std::uint64_t, fields.size()> agreed;
  std::transform(fields.begin(), fields.end(), agreed.begin(), [](Field f) { return f.value; });
  check_mpi(MPI_Bcast(agreed.data(), static_cast<int>(agreed.size()), MPI_UINT64_T, 0, world_),
            "MPI_Bcast of the certificate");
  on_all_ranks(world_, [&] {
    for (std::size_t i = 0; i < fields.size(); ++i)
      if (fields[i].value != agreed[i])
        throw CheckpointError(
            fmt::format("nothing was saved (the {} is not that of rank 0: {:#x}, not {:#x}); the "
                        "ranks have drifted apart, restart from the last checkpoint",
                        fields[i].name, fields[i].value, agreed[i]));
  });
  certificate_.step = control.step;
  certificate_.attempt = control.attempt;
  certificate_.control_digest = control.digest();
  certificate_.ledger_digest = control.ledger.digest();
  certificate_.configuration_hash = boundary_.configuration_hash();
}

void Save::judge_block(const Source& source, const StateArray& array, const std::string& optimizer,
                       std::size_t in_shard) const
{
  const ShardPlan& plan = *source.state.plan;
  const SlotLayout& slot = plan.layout(topology_.model_rank());
  const std::uint32_t block = plan.shard(topology_.rank())[in_shard];
  const std::uint32_t p = slot.parameter_of(block);
  const Piece& piece = slot.piece(p);
  const std::size_t begin = (block - piece.first_block) * block_elements;
  const float* values = array.data + in_shard * block_elements;
  const std::size_t count = std::min(block_elements, piece.elements - begin);
  const std::size_t bad = first_illegal(array.name, values, count);
  if (bad == count) return;
  throw CheckpointError(fmt::format(
      "nothing was saved ({}/{} element {} has {} = {}); restart from the last checkpoint",
      optimizer, (*source.state.parameters)[p].name, piece.global_index(begin + bad), array.name,
      values[bad]));
}

void Save::hash_and_judge_state()
{
  for (std::size_t i = 0; i < sources_.size(); ++i)
    for (const StateArray& array : sources_[i].state.arrays) {
      auto& hashes = hashes_.emplace_back();
      hashes.reserve(sources_[i].flat_blocks.size());
      for (std::size_t b = 0; b < sources_[i].flat_blocks.size(); ++b) {
        judge_block(sources_[i], array, manifest_.optimizers[i].name, b);
        hashes.push_back(hash_block(array.data + b * block_elements));
      }
    }
}

void Save::gather_hashes()
{
  const bool root = topology_.rank() == 0;
  std::size_t next = 0;
  for (const Source& source : sources_) {
    const ShardPlan& plan = *source.state.plan;
    std::vector<int> counts, begins;
    std::vector<std::size_t> order;  // flat block of each hash as it arrives
    on_all_ranks(world_, [&] {
      std::size_t total = 0;
      for (int r = 0; root && r < topology_.size(); ++r) {
        const auto blocks = flat_blocks_of(plan, source.layout, r);
        order.insert(order.end(), blocks.begin(), blocks.end());
        counts.push_back(static_cast<int>(blocks.size()));
        begins.push_back(static_cast<int>(total));
        total += blocks.size();
      }
      if (total > static_cast<std::size_t>(std::numeric_limits<int>::max()))
        throw CheckpointError("nothing was saved (more than 2^31 blocks); use several optimizers");
    });
    for (std::size_t a = 0; a < source.state.arrays.size(); ++a, ++next) {
      std::vector<std::uint64_t> arrived(order.size());
      check_mpi(
          MPI_Gatherv(hashes_[next].data(), static_cast<int>(hashes_[next].size()), MPI_UINT64_T,
                      arrived.data(), counts.data(), begins.data(), MPI_UINT64_T, 0, world_),
          "MPI_Gatherv of block hashes");
      auto& table = tables_.emplace_back(order.size());
      for (std::size_t i = 0; i < order.size(); ++i) table[order[i]] = arrived[i];
    }
  }
}

// --- the file ------------------------------------------------------------------------------------

void Save::choose_names()
{
  const std::string name = fmt::format("step-{:012}.h5", certificate_.step);
  std::string temporary;
  if (topology_.rank() == 0) {
    std::random_device random;  // another job, or what a killed one left behind
    temporary = fmt::format(".{}.{:08x}.tmp", name, random());
  }
  broadcast(world_, temporary);
  temporary_ = directory_ / temporary;
  final_ = directory_ / name;
}

/// The file with its flat datasets and nothing in them, by one rank with the serial driver. What
/// follows changes no metadata until complete().
void Save::create_skeleton()
{
  make_directory(directory_);
  const PosixFile exclusive = PosixFile::create(temporary_);
  try {
    // Twice: creating the file gives the room back, and its first bytes need some.
    exclusive.reserve(0, room_for_payload(manifest_));
    make_empty_file(temporary_);
    exclusive.reserve(exclusive.size(), room_for_payload(manifest_));
    FileHandle file = open_file(temporary_, true);
    for (const ManifestEntry& optimizer : manifest_.optimizers) {
      make_groups(file.get(), optimizer.group + "/");
      for (const std::string& array : optimizer.arrays)
        create_flat(file.get(), optimizer.data_path(array), H5T_IEEE_F32LE,
                    optimizer.blocks * block_elements)
            .close("H5Dclose");
    }
    file.close("H5Fclose");  // cuts the file to what is needed
  } catch (const Hdf5Failure& failure) {
    fail(failure);
  }
}

/// By parallel HDF5: all ranks open the file together, each writes its own blocks independently.
void Save::write_payload()
{
  ParallelFile file;
  // Every rank has just opened the file by itself, so this does not fail on some of them only.
  on_all_ranks(world_, [&] {
    try {
      file.open(temporary_, world_);
    } catch (const Hdf5Failure& failure) {
      fail(failure);
    }
  });
  const auto close = [&] {
    on_all_ranks(world_, [&] {
      try {
        file.close();
      } catch (const Hdf5Failure& failure) {
        fail(failure);
      }
    });
  };
  try {
    on_all_ranks(world_, [&] {
      reach(Phase::save_payload);
      for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (sources_[i].flat_blocks.empty()) continue;
        for (const StateArray& array : sources_[i].state.arrays) {
          const std::string path = manifest_.optimizers[i].data_path(array.name);
          Dataset dataset;
          try {
            dataset = {H5Dopen2(file.get(), path.c_str(), H5P_DEFAULT), "H5Dopen"};
          } catch (const Hdf5Failure& failure) {
            fail(failure);
          }
          write_array(dataset.get(), sources_[i], array, path);
        }
      }
    });
  } catch (const MpiError&) {
    throw;
  } catch (const Error&) {
    try {
      close();  // collective: all ranks are here
    } catch (const IoError&) {
      // The first error is the one to report.
    }
    throw;
  }
  close();
}

void Save::write_array(hid_t dataset, const Source& source, const StateArray& array,
                       const std::string& path) const
{
  const std::uint64_t elements = source.layout.blocks() * block_elements;
  const Dataspace flat = flat_space(elements);
  for (const Run& run : runs_of(source.flat_blocks)) {
    const float* values = array.data + run.in_shard * block_elements;
    const hsize_t begin = run.first * block_elements;
    const hsize_t stride = run.stride * block_elements;
    const hsize_t count = run.count;
    const hsize_t width = block_elements;
    try {
      check_hdf5(H5Sselect_hyperslab(flat.get(), H5S_SELECT_SET, &begin, &stride, &count, &width),
                 "H5Sselect_hyperslab");
      const Dataspace memory = flat_space(run.count * block_elements);
      check_hdf5(H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory.get(), flat.get(), H5P_DEFAULT, values),
                 "H5Dwrite");
    } catch (const Hdf5Failure& failure) {
      // MPI-IO does not say why. The same bytes at the same place by POSIX do.
      const haddr_t offset = H5Dget_offset(dataset);
      for (std::size_t b = 0; b < run.count && offset != HADDR_UNDEF; ++b)
        file_.write_at(offset + (run.first + b * run.stride) * block_bytes,
                       values + b * block_elements, block_bytes);
      throw IoError(fmt::format("cannot write {} of {} ({}); the previous checkpoint is untouched",
                                path, temporary_.string(), failure.what()));
    }
  }
}

void Save::complete()
{
  reach(Phase::save_complete);
  Metadata metadata;
  metadata.manifest = to_json(manifest_);
  metadata.control_state = to_json(boundary_.control());
  metadata.configuration = configuration_;
  certificate_.manifest = hash_text(metadata.manifest);
  certificate_.control_state = hash_text(metadata.control_state);
  certificate_.configuration = hash_text(metadata.configuration);
  for (const auto& table : tables_)
    certificate_.tables.push_back(hash_bytes(table.data(), table.size() * sizeof(table[0])));
  metadata.certificate = to_json(certificate_);
  const std::uint64_t size = file_.size();
  file_.reserve(size, size + room_for_metadata(manifest_, metadata));
  try {
    write_metadata(temporary_, manifest_, metadata, tables_);
  } catch (const Hdf5Failure& failure) {
    fail(failure);
  }
  file_.sync();
}

void Save::publish()
{
  reach(Phase::save_publish);
  rename_file(temporary_, final_);
  published_ = true;
  sync_directory(directory_);
}

void Save::turn_pointer()
{
  const fs::path new_pointer = temporary_.string() + ".latest";
  afterwards("its pointer is not", [&] {
    try {
      reach(Phase::save_pointer);
      const std::string text = final_.filename().string() + "\n";
      PosixFile file = PosixFile::create(new_pointer);
      file.write_at(0, text.data(), text.size());
      file.sync();
      file.close();
      rename_file(new_pointer, directory_ / "latest");
      sync_directory(directory_);
    } catch (...) {
      remove_quietly(new_pointer);
      throw;
    }
  });
}

void Save::retain()
{
  afterwards("older ones were not removed", [&] { reach(Phase::save_retain); });
}

}  // namespace

fs::path save_checkpoint(const CommittedBoundary& boundary, const fs::path& directory,
                         const CheckpointOptions& options)
{
  const QuietHdf5 quiet;
  return Save(boundary, directory, options).run();
}

}  // namespace tutti
