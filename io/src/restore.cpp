// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A restore: one rank reads and judges the metadata, all ranks hear the same, each fills its shard
// from the blocks that hold its elements, and the whole is compared with what was saved.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "block_reader.hpp"
#include "flat_layout.hpp"
#include "format.hpp"
#include "posix_file.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;
using json = nlohmann::json;

/// Blocks of the shard that are filled at a time: 4 MiB of each array.
constexpr std::size_t blocks_at_a_time = 256;

// --- is it this model? ---------------------------------------------------------------------------

/// Collects differences; a message names the first few.
class Differences {
 public:
  template <class... Parts>
  void add(fmt::format_string<Parts...> format, Parts&&... parts)
  {
    if (++count_ > most) return;
    if (!text_.empty()) text_ += "; ";
    text_ += fmt::format(format, std::forward<Parts>(parts)...);
  }
  bool any() const { return count_ > 0; }
  std::string text() const
  {
    return count_ > most ? fmt::format("{}; and {} more", text_, count_ - most) : text_;
  }

 private:
  static constexpr std::size_t most = 12;
  std::string text_;
  std::size_t count_ = 0;
};

std::string shape_text(const std::vector<std::size_t>& shape)
{
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Index by index of the run's list: where the saved list has the same name.
struct Match {
  std::size_t optimizer = 0;
  std::vector<std::size_t> arrays, parameters;
};

Match compare(const std::string& name, const StateView& state, const ManifestEntry& saved,
              Differences& differences)
{
  Match match;
  for (const StateArray& array : state.arrays) {
    const auto found = std::find(saved.arrays.begin(), saved.arrays.end(), array.name);
    if (found == saved.arrays.end())
      differences.add("array {} of optimizer '{}' is missing", array.name, name);
    match.arrays.push_back(static_cast<std::size_t>(found - saved.arrays.begin()));
  }
  for (const std::string& array : saved.arrays)
    if (std::none_of(state.arrays.begin(), state.arrays.end(),
                     [&](const StateArray& a) { return a.name == array; }))
      differences.add("array {} of optimizer '{}' is extra", array, name);

  std::vector<bool> used(saved.parameters.size());
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t p = 0; p < saved.parameters.size(); ++p) index[saved.parameters[p].name] = p;
  for (std::size_t p = 0; p < state.parameters->size(); ++p) {
    const ParameterSpec& wanted = (*state.parameters)[p];
    const auto found = index.find(wanted.name);
    match.parameters.push_back(found == index.end() ? 0 : found->second);
    if (found == index.end()) {
      differences.add("parameter {}/{} is missing", name, wanted.name);
      continue;
    }
    used[found->second] = true;
    const ParameterSpec& stored = saved.parameters[found->second];
    if (stored.shape != wanted.shape)
      differences.add("parameter {}/{} has shape {} there and {} here", name, wanted.name,
                      shape_text(stored.shape), shape_text(wanted.shape));
    if (stored.precision != wanted.precision)
      differences.add("parameter {}/{} has precision {} there and {} here", name, wanted.name,
                      name_of(stored.precision), name_of(wanted.precision));
  }
  for (std::size_t p = 0; p < used.size(); ++p)
    if (!used[p]) differences.add("parameter {}/{} is extra", name, saved.parameters[p].name);
  return match;
}

// --- metadata on all ranks -----------------------------------------------------------------------

std::string packed(const Metadata& metadata)
{
  json places = json::array();
  for (const ArrayPlace& place : metadata.places) places.push_back({place.data, place.hashes});
  return json{
      {"format_version", metadata.format_version}, {"manifest", metadata.manifest},
      {"control_state", metadata.control_state},   {"configuration", metadata.configuration},
      {"certificate", metadata.certificate},       {"places", places}}
      .dump();
}

Metadata unpacked(const std::string& text)
{
  const json in = json::parse(text);
  Metadata metadata;
  in.at("format_version").get_to(metadata.format_version);
  in.at("manifest").get_to(metadata.manifest);
  in.at("control_state").get_to(metadata.control_state);
  in.at("configuration").get_to(metadata.configuration);
  in.at("certificate").get_to(metadata.certificate);
  for (const json& place : in.at("places"))
    metadata.places.push_back({place.at(0).get<std::uint64_t>(), place.at(1).get<std::uint64_t>()});
  return metadata;
}

// --- the restore ---------------------------------------------------------------------------------

class Restore {
 public:
  Restore(const fs::path& file, const Topology& topology,
          std::span<Participant* const> participants, const RestoreOptions& options)
      : topology_(topology),
        world_(topology.world()),
        path_(file),
        participants_(participants),
        options_(options)
  {
  }

  RestoredControl run()
  {
    std::string text;
    on_rank_zero(world_, [&] { text = packed(read_metadata(path_)); });
    broadcast(world_, text);
    std::string path = path_.string();
    broadcast(world_, path);
    on_all_ranks(world_, [&] {
      path_ = path;
      metadata_ = unpacked(text);
      manifest_ = manifest_from_json(metadata_.manifest);
      certificate_ = certificate_from_json(metadata_.certificate);
      for (Participant* participant : participants_) states_.push_back(participant->state());
    });
    on_rank_zero(world_, [&] { judge(); });
    on_all_ranks(world_, [&] { match(); });
    on_all_ranks(world_, [&] { fill(); });
    check_filled();
    if (options_.verify == Verify::full) compare_digest();
    for (Participant* participant : participants_) participant->restored();
    return result();
  }

 private:
  void judge();
  void match();
  void fill();
  void fill_optimizer(std::size_t index, BlockReader& reader);
  void check_filled();
  void compare_digest();
  RestoredControl result() const;

  std::string refused(const std::string& reason, const char* suggestion) const
  {
    return fmt::format("checkpoint {} is refused ({}); {}", path_.string(), reason, suggestion);
  }

  const Topology& topology_;
  MPI_Comm world_;
  fs::path path_;
  std::span<Participant* const> participants_;
  const RestoreOptions& options_;
  Metadata metadata_;
  Manifest manifest_;
  Certificate certificate_;
  ControlState control_;
  std::vector<StateView> states_;
  std::vector<Match> matches_;
  std::vector<std::uint64_t> filled_;  ///< elements of each optimizer that this rank filled
};

/// Everything that is compared before anything is overwritten.
void Restore::judge()
{
  match();
  const ControlState control = control_state_from_json(metadata_.control_state);
  std::size_t parameters = 0;
  for (const ManifestEntry& optimizer : manifest_.optimizers)
    parameters += optimizer.parameters.size();
  if (control.step != certificate_.step || control.attempt != certificate_.attempt ||
      control.digest() != certificate_.control_digest ||
      control.ledger.digest() != certificate_.ledger_digest || control.clocks.size() != parameters)
    throw CheckpointError(
        refused("its control state is not that of its certificate", "restore another one"));
  if (options_.epoch_samples && control.ledger.epoch_samples != *options_.epoch_samples)
    throw CheckpointError(
        refused(fmt::format("its epoch has {} samples and this run's has {}",
                            control.ledger.epoch_samples, *options_.epoch_samples),
                "give the data that it was trained on"));
}

void Restore::match()
{
  Differences differences;
  matches_.clear();
  for (std::size_t i = 0; i < participants_.size(); ++i) {
    const std::string& name = participants_[i]->name();
    const StateView& state = states_[i];
    if (state.parameters == nullptr || state.plan == nullptr ||
        state.plan->size() != topology_.size() ||
        state.plan->model_parallel() != topology_.model_parallel())
      throw InvalidArgument(
          fmt::format("optimizer '{}' cannot be restored (its shard plan is not one of this job); "
                      "build it from the same topology",
                      name));
    const auto saved = std::find_if(manifest_.optimizers.begin(), manifest_.optimizers.end(),
                                    [&](const ManifestEntry& e) { return e.name == name; });
    if (saved == manifest_.optimizers.end()) {
      differences.add("optimizer '{}' is missing", name);
      continue;
    }
    matches_.push_back(compare(name, state, *saved, differences));
    matches_.back().optimizer = static_cast<std::size_t>(saved - manifest_.optimizers.begin());
  }
  for (const ManifestEntry& saved : manifest_.optimizers)
    if (std::none_of(participants_.begin(), participants_.end(),
                     [&](const Participant* p) { return p->name() == saved.name; }))
      differences.add("optimizer '{}' is extra", saved.name);
  if (differences.any())
    throw CheckpointError(refused("it is of another model: " + differences.text(),
                                  "restore it into the model that was saved"));
}

void Restore::fill()
{
  const PosixFile file = PosixFile::open_to_read(path_);
  BlockReader reader(file, path_.string(), options_.verify == Verify::full);
  for (std::size_t i = 0; i < participants_.size(); ++i) fill_optimizer(i, reader);
}

/// Elements that are consecutive both in the file and in the shard.
struct Copy {
  std::size_t from = 0;  ///< flat element of the file
  std::size_t to = 0;    ///< element of the shard
  std::size_t count = 0;
};

void Restore::fill_optimizer(std::size_t index, BlockReader& reader)
{
  const StateView& state = states_[index];
  const Match& match = matches_[index];
  const ManifestEntry& saved = manifest_.optimizers[match.optimizer];
  const FlatLayout layout(saved.parameters, manifest_.model_parallel);
  std::size_t first_place = 0;
  for (std::size_t i = 0; i < match.optimizer; ++i)
    first_place += manifest_.optimizers[i].arrays.size();

  const std::vector<std::uint32_t>& shard = state.plan->shard(topology_.rank());
  const SlotLayout& slot = state.plan->layout(topology_.model_rank());
  std::uint64_t& filled = filled_.emplace_back(0);
  std::vector<Copy> copies;
  std::vector<std::size_t> blocks;  // of the file

  for (std::size_t first = 0; first < shard.size(); first += blocks_at_a_time) {
    const std::size_t last = std::min(shard.size(), first + blocks_at_a_time);
    copies.clear();
    blocks.clear();
    for (std::size_t b = first; b < last; ++b) {
      const std::uint32_t p = slot.parameter_of(shard[b]);
      const Piece& piece = slot.piece(p);
      const std::size_t begin = (shard[b] - piece.first_block) * block_elements;
      const std::size_t end = std::min(piece.elements, begin + block_elements);
      for (std::size_t e = begin; e < end;) {
        const auto run = layout.locate(match.parameters[p], piece.global_index(e));
        const std::size_t row_left = piece.inner - e % piece.inner;
        const std::size_t count = std::min({run.count, row_left, end - e});
        copies.push_back({run.element, b * block_elements + (e - begin), count});
        for (std::size_t f = run.element / block_elements;
             f <= (run.element + count - 1) / block_elements; ++f)
          if (blocks.empty() || blocks.back() != f) blocks.push_back(f);
        e += count;
        filled += count;
      }
    }
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());

    for (std::size_t a = 0; a < state.arrays.size(); ++a) {
      const StateArray& array = state.arrays[a];
      reader.read(saved, layout, array.name, metadata_.places[first_place + match.arrays[a]],
                  blocks);
      std::fill(array.data + first * block_elements, array.data + last * block_elements, 0.0f);
      for (const Copy& copy : copies) {
        // A run's blocks are all there and follow each other, in the buffer as in the file.
        const auto at = std::lower_bound(blocks.begin(), blocks.end(), copy.from / block_elements);
        const float* from = reader.buffer() +
                            static_cast<std::size_t>(at - blocks.begin()) * block_elements +
                            copy.from % block_elements;
        std::copy_n(from, copy.count, array.data + copy.to);
        const std::size_t bad = first_illegal(array.name, from, copy.count);
        if (bad == copy.count) continue;
        const std::size_t b = copy.to / block_elements;
        const std::uint32_t p = slot.parameter_of(shard[b]);
        const std::size_t in_piece = (shard[b] - slot.piece(p).first_block) * block_elements +
                                     copy.to % block_elements + bad;
        throw CheckpointError(
            refused(fmt::format("{} block {}: element {} of parameter '{}' is {}",
                                saved.data_path(array.name), (copy.from + bad) / block_elements,
                                slot.piece(p).global_index(in_piece), (*state.parameters)[p].name,
                                from[bad]),
                    "restore another one"));
      }
    }
  }
}

/// Every element has one owner and every owner filled all of its own.
void Restore::check_filled()
{
  if (filled_.empty()) return;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, filled_.data(), static_cast<int>(filled_.size()),
                          MPI_UINT64_T, MPI_SUM, world_),
            "MPI_Allreduce of restored elements");
  for (std::size_t i = 0; i < filled_.size(); ++i) {
    std::uint64_t elements = 0;
    for (std::size_t p = 0; p < states_[i].parameters->size(); ++p) {
      std::uint64_t product = 1;
      for (const std::size_t extent : (*states_[i].parameters)[p].shape) product *= extent;
      elements += product;
    }
    if (filled_[i] != elements)
      throw CheckpointError(
          refused(fmt::format("{} of {} elements of optimizer '{}' were filled", filled_[i],
                              elements, participants_[i]->name()),
                  "this is a fault of tutti or of a shard plan that is not its own"));
  }
}

void Restore::compare_digest()
{
  const std::uint64_t digest = state_digest(participants_, world_);
  if (digest != certificate_.state_digest)
    throw CheckpointError(
        refused(fmt::format("the restored state has digest {:016x} and its certificate {:016x}",
                            digest, certificate_.state_digest),
                "restore another one"));
}

RestoredControl Restore::result() const
{
  RestoredControl out;
  out.control = control_state_from_json(metadata_.control_state);
  out.configuration = metadata_.configuration;
  out.state_digest = certificate_.state_digest;
  out.format_version = metadata_.format_version;
  out.ranks = manifest_.ranks;
  out.model_parallel = manifest_.model_parallel;

  // The clocks of all optimizers' parameters lie one after the other, in the saved run's order.
  std::vector<std::size_t> first;
  std::size_t clocks = 0;
  for (const ManifestEntry& optimizer : manifest_.optimizers) {
    first.push_back(clocks);
    clocks += optimizer.parameters.size();
  }
  std::vector<ParameterClock> ordered;
  ordered.reserve(clocks);
  for (const Match& match : matches_)
    for (const std::size_t p : match.parameters)
      ordered.push_back(out.control.clocks[first[match.optimizer] + p]);
  out.control.clocks = std::move(ordered);
  return out;
}

}  // namespace

RestoredControl restore_checkpoint(const fs::path& file, const Topology& topology,
                                   std::span<Participant* const> participants,
                                   const RestoreOptions& options)
{
  const QuietHdf5 quiet;
  return Restore(file, topology, participants, options).run();
}

std::string checkpoint_configuration(const std::filesystem::path& file)
{
  return detail::read_metadata(file).configuration;
}

}  // namespace tutti
