// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A save from the agreed boundary to the published file, in the order in which things become true
// on disk. Each step is a guarded piece of local work or one collective, so that whatever fails on
// one rank, all leave together and the previous checkpoint stays.
#include "save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "mpi_file.hpp"
#include "retention.hpp"
#include "tutti/digest.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

namespace tutti::detail {

namespace fs = std::filesystem;

Save::Save(const CommittedBoundary& boundary, fs::path directory, const CheckpointOptions& options)
    : topology_(boundary.topology()),
      world_(boundary.topology().world()),
      directory_(std::move(directory)),
      options_(options),
      control_(boundary.control()),
      participants_(boundary.participants()),
      payload_(std::make_shared<Payload>(boundary.topology().rank()))
{
  certificate_.configuration_hash = boundary.configuration_hash();
  control_.pending_save = 0;  // a matter of this process: who restores has no save in flight
  payload_->reached = options_.reached;
}

// --- what is saved -------------------------------------------------------------------------------

void Save::prepare()
{
  on_all_ranks(world_, [&] {
    payload_->reach(Phase::save_prepare);
    look_at_state();
  });
  agree();
  look_at_own_arrays();
}

void Save::look_at_state()
{
  std::string& configuration = options_.configuration;
  configuration.erase(configuration.find_last_not_of(" \n") + 1);
  if (!nlohmann::json::accept(configuration))
    throw InvalidArgument("the configuration for a checkpoint is not JSON; give JSON text or {}");
  manifest_.ranks = topology_.size();
  manifest_.model_parallel = topology_.model_parallel();
  std::set<std::string> names;
  for (Participant* participant : participants_) {
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
    payload_->sources.push_back({name, *state.parameters, *state.plan, state.arrays, state.device,
                                 std::move(layout), std::move(blocks)});
  }
  if (options_.own != nullptr) {
    for (const OwnArrays::Array& array : options_.own->arrays())
      manifest_.own_arrays.push_back({array.name, array.type, array.shape, {}, 0, {}});
    for (const OwnArrays::Scalar& scalar : options_.own->scalars()) {
      OwnScalarEntry& entry = manifest_.own_scalars.emplace_back();
      entry.name = scalar.name;
      entry.type = scalar.type;
      std::memcpy(&entry.bits, scalar.value, bytes_of(scalar.type));  // little-endian
    }
  }
  assign_paths(manifest_);
}

/// Of what must be the same on all ranks; parts are not.
std::uint64_t hash_of_own_arrays(const Manifest& manifest)
{
  std::uint64_t hash = mix64(manifest.own_arrays.size(), manifest.own_scalars.size());
  for (const OwnArrayEntry& array : manifest.own_arrays) {
    hash = mix64(mix64(hash, hash_of(array.name)), static_cast<std::uint64_t>(array.type));
    for (const std::size_t extent : array.shape) hash = mix64(hash, extent);
  }
  for (const OwnScalarEntry& scalar : manifest.own_scalars)
    hash = mix64(mix64(hash, hash_of(scalar.name)), static_cast<std::uint64_t>(scalar.type));
  return hash;
}

std::uint64_t hash_of_own_scalars(const Manifest& manifest)
{
  std::uint64_t hash = 0;
  for (const OwnScalarEntry& scalar : manifest.own_scalars) hash = mix64(hash, scalar.bits);
  return hash;
}

/// Everybody learns everybody's parts, and they lie in the file in the order of ranks.
void Save::look_at_own_arrays()
{
  if (manifest_.own_arrays.empty()) return;
  std::vector<std::uint64_t> mine;
  for (const OwnArrays::Array& array : options_.own->arrays()) {
    mine.insert(mine.end(), array.part.begin.begin(), array.part.begin.end());
    mine.insert(mine.end(), array.part.extent.begin(), array.part.extent.end());
  }
  const int count = static_cast<int>(mine.size());
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(topology_.size()));
  check_mpi(
      MPI_Allgather(mine.data(), count, MPI_UINT64_T, all.data(), count, MPI_UINT64_T, world_),
      "MPI_Allgather of own arrays' parts");
  auto next = all.begin();
  const auto take = [&](std::size_t axes) {
    std::vector<std::size_t> values(next, next + static_cast<std::ptrdiff_t>(axes));
    next += static_cast<std::ptrdiff_t>(axes);
    return values;
  };
  for (int r = 0; r < topology_.size(); ++r)
    for (OwnArrayEntry& array : manifest_.own_arrays) {
      ArrayPart part;
      part.begin = take(array.shape.size());
      part.extent = take(array.shape.size());
      const std::size_t elements = part.elements();
      if (r == topology_.rank())
        payload_->own.push_back({nullptr, elements * bytes_of(array.type), array.blocks});
      if (elements == 0) continue;
      const std::size_t blocks = own_blocks(part, array.type);
      array.parts.push_back({r, std::move(part), array.blocks});
      array.blocks += blocks;
    }
  for (std::size_t i = 0; i < payload_->own.size(); ++i)
    payload_->own[i].data = static_cast<const std::byte*>(options_.own->arrays()[i].data);
  on_rank_zero(world_, [&] {
    for (const OwnArrayEntry& array : manifest_.own_arrays) require_partition(array);
  });
}

/// The certificate says that all ranks hold the same; here that becomes true.
void Save::agree()
{
  const std::vector<Source>& sources = payload_->sources;
  std::uint64_t optimizers = mix64(sources.size());
  std::uint64_t plans = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const ManifestEntry& entry = manifest_.optimizers[i];
    optimizers = mix64(mix64(optimizers, hash_of(entry.name)), entry.parameters.hash());
    for (const std::string& array : entry.arrays) optimizers = mix64(optimizers, hash_of(array));
    plans = mix64(plans, sources[i].plan.hash());
  }
  struct Field {
    const char* name;
    std::uint64_t value;
  };
  const std::array<Field, 12> fields = {
      {{"step", control_.step},
       {"attempt", control_.attempt},
       {"control state", control_.digest()},
       {"ledger", control_.ledger.digest()},
       {"hash of the run", certificate_.configuration_hash},
       {"configuration text", hash_text(options_.configuration)},
       {"directory", hash_text(directory_.string())},
       {"write path", static_cast<std::uint64_t>(options_.io)},
       {"optimizers", optimizers},
       {"shard plan", plans},
       {"list of own arrays", hash_of_own_arrays(manifest_)},
       {"value of an own scalar", hash_of_own_scalars(manifest_)}}};
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
  certificate_.step = control_.step;
  certificate_.attempt = control_.attempt;
  certificate_.control_digest = control_.digest();
  certificate_.ledger_digest = control_.ledger.digest();
}

void Save::take_snapshot(Payload* before)
{
  on_all_ranks(world_, [&] { payload_->take_snapshot(before); });
}

void Save::judge()
{
  on_all_ranks(world_, [&] { payload_->judge(); });
}

// --- the file ------------------------------------------------------------------------------------

/// An HDF5 failure while writing, as the caller is told.
void Save::fail(const Hdf5Failure& failure) const
{
  throw IoError(
      fmt::format("cannot write {} ({}); the previous checkpoint is untouched, check the file "
                  "system",
                  temporary_.string(), failure.what()));
}

void Save::create()
{
  final_ = directory_ / checkpoint_name(control_.step);
  std::string temporary;
  on_rank_zero(world_, [&] {
    make_directory(directory_);
    hidden_.emplace(directory_, final_.filename().string());
    temporary = hidden_->path().string();
  });
  broadcast_text(world_, temporary, 0);
  temporary_ = temporary;
  on_rank_zero(world_, [&] { create_skeleton(); });
  std::size_t arrays = payload_->own.size();
  for (const Source& source : payload_->sources) arrays += source.arrays.size();
  payload_->offsets.resize(arrays);
  check_mpi(MPI_Bcast(payload_->offsets.data(), static_cast<int>(arrays), MPI_UINT64_T, 0, world_),
            "MPI_Bcast of the offsets");
  on_all_ranks(world_, [&] { payload_->file = PosixFile::open_to_write(temporary_); });
}

/// The file with its flat datasets and nothing in them, by one rank with the serial driver. What
/// follows changes no metadata until complete().
void Save::create_skeleton()
{
  remove_leftovers(directory_);  // their room may be needed
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
      for (const std::string& array : optimizer.arrays)
        payload_->offsets.push_back(flat_offset(file.get(), optimizer.data_path(array),
                                                H5T_IEEE_F32LE, optimizer.blocks * block_elements));
    }
    for (const OwnArrayEntry& array : manifest_.own_arrays) {
      const hid_t type = hdf5_type(array.type);
      make_groups(file.get(), array.group + "/");
      create_flat(file.get(), array.data_path(), type, array.elements_in_file()).close("H5Dclose");
      payload_->offsets.push_back(
          flat_offset(file.get(), array.data_path(), type, array.elements_in_file()));
    }
    file.close("H5Fclose");  // cuts the file to what is needed
  } catch (const Hdf5Failure& failure) {
    fail(failure);
  }
}

void Save::write()
{
  on_all_ranks(world_, [&] {
    payload_->reach(Phase::save_payload);
    if (options_.io == CheckpointIo::mpiio)
      write_by_mpiio();
    else
      payload_->write();
  });
  on_all_ranks(world_, [&] {
    payload_->reach(Phase::save_sync);
    payload_->sync();
  });
}

void Save::write_by_mpiio() const
{
  MpiFile file(temporary_);
  payload_->write([&](std::uint64_t offset, const void* data, std::size_t bytes) {
    try {
      file.write_at(offset, data, bytes);
    } catch (const IoError&) {
      payload_->file.write_at(offset, data, bytes);  // MPI-IO does not say why; this does
      throw;
    }
  });
  file.close();
}

// --- publication ---------------------------------------------------------------------------------

fs::path Save::publish(std::future<void>& removal, bool later)
{
  gather_hashes();
  on_rank_zero(world_, [&] { complete(); });
  on_all_ranks(world_, [&] { payload_->file.close(); });
  on_rank_zero(world_, [&] { give_name(); });
  on_rank_zero(world_, [&] { turn_pointer(); });
  on_rank_zero(world_, [&] { retain(removal, later); });
  return final_;
}

void Save::discard() noexcept
{
  if (topology_.rank() == 0 && !published_ && !temporary_.empty()) remove_quietly(temporary_);
  hidden_.reset();
}

void Save::gather_hashes()
{
  const bool root = topology_.rank() == 0;
  const auto& hashes = payload_->hashes();
  certificate_.state_digest = payload_->digest_part();
  check_mpi(
      MPI_Allreduce(MPI_IN_PLACE, &certificate_.state_digest, 1, MPI_UINT64_T, MPI_SUM, world_),
      "MPI_Allreduce of the state digest");
  std::size_t next = 0;
  for (const Source& source : payload_->sources) {
    const ShardPlan& plan = source.plan;
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
    for (std::size_t a = 0; a < source.arrays.size(); ++a, ++next) {
      std::vector<std::uint64_t> arrived(order.size());
      check_mpi(
          MPI_Gatherv(hashes[next].data(), static_cast<int>(hashes[next].size()), MPI_UINT64_T,
                      arrived.data(), counts.data(), begins.data(), MPI_UINT64_T, 0, world_),
          "MPI_Gatherv of block hashes");
      auto& table = tables_.emplace_back(order.size());
      for (std::size_t i = 0; i < order.size(); ++i) table[order[i]] = arrived[i];
    }
  }
  for (const OwnArrayEntry& array : manifest_.own_arrays) {
    // Parts lie in the file in the order of ranks, as they arrive.
    std::vector<int> counts(static_cast<std::size_t>(topology_.size())), begins(counts.size());
    for (const SavedPart& saved : array.parts) {
      counts[static_cast<std::size_t>(saved.rank)] =
          static_cast<int>(own_blocks(saved.part, array.type));
      begins[static_cast<std::size_t>(saved.rank)] = static_cast<int>(saved.first_block);
    }
    std::vector<std::uint64_t> table(root ? array.blocks : 0);
    check_mpi(MPI_Gatherv(hashes[next].data(), static_cast<int>(hashes[next].size()), MPI_UINT64_T,
                          table.data(), counts.data(), begins.data(), MPI_UINT64_T, 0, world_),
              "MPI_Gatherv of block hashes");
    tables_.push_back(std::move(table));
    ++next;
  }
}

void Save::complete()
{
  payload_->reach(Phase::save_complete);
  Metadata metadata;
  metadata.manifest = to_json(manifest_);
  metadata.control_state = to_json(control_);
  metadata.configuration = options_.configuration;
  certificate_.manifest = hash_text(metadata.manifest);
  certificate_.control_state = hash_text(metadata.control_state);
  certificate_.configuration = hash_text(metadata.configuration);
  for (const auto& table : tables_)
    certificate_.tables.push_back(hash_bytes(table.data(), table.size() * sizeof(table[0])));
  metadata.certificate = to_json(certificate_);
  const std::uint64_t size = payload_->file.size();
  payload_->file.reserve(size, size + room_for_metadata(manifest_, metadata));
  try {
    write_metadata(temporary_, manifest_, metadata, tables_);
  } catch (const Hdf5Failure& failure) {
    fail(failure);
  }
  payload_->file.sync();
}

void Save::give_name()
{
  payload_->reach(Phase::save_publish);
  rename_file(temporary_, final_);
  published_ = true;
  sync_directory(directory_);
}

/// Runs work on a checkpoint that is already published.
template <class Work>
void Save::afterwards(const char* what_failed, const Work& work) const
{
  try {
    work();
  } catch (const std::exception& error) {
    throw IoError(fmt::format("checkpoint {} is complete, but {}: {}", final_.string(), what_failed,
                              error.what()));
  }
}

void Save::turn_pointer()
{
  const fs::path new_pointer = temporary_.string() + ".latest";
  afterwards("its pointer is not", [&] {
    try {
      payload_->reach(Phase::save_pointer);
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

/// Last of all, since removing a large file takes its time.
void Save::retain(std::future<void>& removal, bool later)
{
  hidden_.reset();  // no hidden file is left
  afterwards("older ones were not removed", [&] {
    payload_->reach(Phase::save_retain);
    if (removal.valid()) removal.get();
    auto expendable = expendable_checkpoints(directory_, final_, options_.keep);
    if (later && !expendable.empty())
      removal = std::async(std::launch::async, remove_checkpoints, std::move(expendable));
    else
      remove_checkpoints(expendable);
  });
}

}  // namespace tutti::detail
