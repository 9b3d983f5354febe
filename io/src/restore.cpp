// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A restore: one rank reads and judges the metadata, all ranks hear the same, each fills its shard
// from the blocks that hold its elements, and the whole is compared with what was saved.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "block_reader.hpp"
#include "contents.hpp"
#include "marker.hpp"
#include "packed.hpp"
#include "posix_file.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;

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

/// What of a run is restored, and from where. Index by index of the run's lists.
struct Match {
  static constexpr std::size_t none = ~std::size_t{0};
  std::size_t optimizer = none;         ///< in the file; none: nothing of this one is restored
  std::vector<std::size_t> arrays;      ///< in the file; none: becomes zero
  std::vector<std::size_t> parameters;  ///< in the file; none: is left as it is
};

class Matcher {
 public:
  Matcher(const RestoreOptions& options, const Manifest& manifest)
      : options_(options), manifest_(manifest)
  {
  }
  std::vector<Match> match(std::span<Participant* const> participants,
                           const std::vector<StateView>& states, Differences& differences);

 private:
  bool is_wanted(const std::string& optimizer, const std::string& parameter);
  bool any_wanted(const std::string& optimizer, const ParameterSet& parameters);
  void match_arrays(const std::string& name, const StateView& state, const ManifestEntry& saved,
                    Match& match, Differences& differences) const;
  void match_parameters(const std::string& name, const StateView& state, const ManifestEntry& saved,
                        Match& match, Differences& differences);

  const RestoreOptions& options_;
  const Manifest& manifest_;
  std::vector<bool> used_ = std::vector<bool>(options_.only.size());  ///< patterns that matched
};

bool Matcher::is_wanted(const std::string& optimizer, const std::string& parameter)
{
  bool wanted = options_.only.empty();
  for (std::size_t i = 0; i < options_.only.size(); ++i) {
    const char* pattern = options_.only[i].c_str();
    if (fnmatch(pattern, parameter.c_str(), 0) != 0 &&
        fnmatch(pattern, (optimizer + "/" + parameter).c_str(), 0) != 0)
      continue;
    wanted = used_[i] = true;
  }
  return wanted;
}

bool Matcher::any_wanted(const std::string& optimizer, const ParameterSet& parameters)
{
  bool any = false;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    any = is_wanted(optimizer, parameters[p].name) || any;
  return any;
}

void Matcher::match_arrays(const std::string& name, const StateView& state,
                           const ManifestEntry& saved, Match& match, Differences& differences) const
{
  const auto place_of = [&](const std::string& array) {
    const auto found = std::find(saved.arrays.begin(), saved.arrays.end(), array);
    return found == saved.arrays.end() ? Match::none
                                       : static_cast<std::size_t>(found - saved.arrays.begin());
  };
  bool has_master = false;
  for (const StateArray& array : state.arrays) {
    has_master = has_master || array.name == "master";
    // A new run's moving average begins with its weights, all else with nothing.
    const bool is_weights = array.name == "master" || array.name == "ema";
    if (options_.weights_only && !is_weights) {
      match.arrays.push_back(Match::none);
      continue;
    }
    match.arrays.push_back(place_of(options_.weights_only ? "master" : array.name));
    if (match.arrays.back() == Match::none)
      differences.add("array {} of optimizer '{}' is missing", array.name, name);
  }
  if (options_.weights_only) {
    if (!has_master) differences.add("optimizer '{}' has no array master here", name);
    return;
  }
  for (const std::string& array : saved.arrays)
    if (std::none_of(state.arrays.begin(), state.arrays.end(),
                     [&](const StateArray& a) { return a.name == array; }))
      differences.add("array {} of optimizer '{}' is extra", array, name);
}

void Matcher::match_parameters(const std::string& name, const StateView& state,
                               const ManifestEntry& saved, Match& match, Differences& differences)
{
  std::vector<bool> used(saved.parameters.size());
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t p = 0; p < saved.parameters.size(); ++p) index[saved.parameters[p].name] = p;
  for (std::size_t p = 0; p < state.parameters->size(); ++p) {
    const ParameterSpec& wanted = (*state.parameters)[p];
    match.parameters.push_back(Match::none);
    if (!is_wanted(name, wanted.name)) continue;
    const auto found = index.find(wanted.name);
    if (found == index.end()) {
      differences.add("parameter {}/{} is missing", name, wanted.name);
      continue;
    }
    match.parameters.back() = found->second;
    used[found->second] = true;
    const ParameterSpec& stored = saved.parameters[found->second];
    if (stored.shape != wanted.shape)
      differences.add("parameter {}/{} has shape {} there and {} here", name, wanted.name,
                      shape_text(stored.shape), shape_text(wanted.shape));
    if (stored.precision != wanted.precision && !options_.change_precision)
      differences.add("parameter {}/{} has precision {} there and {} here", name, wanted.name,
                      name_of(stored.precision), name_of(wanted.precision));
  }
  for (std::size_t p = 0; p < used.size(); ++p)
    if (!used[p] && is_wanted(name, saved.parameters[p].name))
      differences.add("parameter {}/{} is extra", name, saved.parameters[p].name);
}

std::vector<Match> Matcher::match(std::span<Participant* const> participants,
                                  const std::vector<StateView>& states, Differences& differences)
{
  const auto& saved = manifest_.optimizers;
  // With one on either side there is no question which weights are meant.
  const bool any_name = options_.weights_only && participants.size() == 1 && saved.size() == 1;
  std::vector<Match> matches(participants.size());
  std::vector<bool> used(saved.size());
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const std::string& name = participants[i]->name();
    const auto found = std::find_if(saved.begin(), saved.end(), [&](const ManifestEntry& e) {
      return any_name || e.name == name;
    });
    const bool wanted = any_wanted(name, *states[i].parameters);
    if (found == saved.end()) {
      if (wanted) differences.add("optimizer '{}' is missing", name);
      continue;
    }
    used[static_cast<std::size_t>(found - saved.begin())] = true;
    if (!wanted && !any_wanted(name, found->parameters)) continue;
    matches[i].optimizer = static_cast<std::size_t>(found - saved.begin());
    match_arrays(name, states[i], *found, matches[i], differences);
    match_parameters(name, states[i], *found, matches[i], differences);
  }
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (!used[i] && any_wanted(saved[i].name, saved[i].parameters))
      differences.add("optimizer '{}' is extra", saved[i].name);
  for (std::size_t i = 0; i < used_.size(); ++i)
    if (!used_[i]) differences.add("no parameter matches '{}'", options_.only[i]);
  return matches;
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
    try {
      read_metadata();
    } catch (const CheckpointError& refusal) {
      throw DamagedCheckpoint(refusal.what());
    }
    on_all_ranks(world_, [&] {
      for (Participant* participant : participants_) states_.push_back(participant->state());
    });
    on_rank_zero(world_, [&] { judge(); });
    on_all_ranks(world_, [&] { match(); });
    try {
      on_all_ranks(world_, [&] { fill(); });
      if (is_digested()) compare_digest();
    } catch (const CheckpointError& refusal) {
      if (topology_.rank() == 0) drop_verified_marker(path_);
      if (dynamic_cast<const IllegalState*>(&refusal) != nullptr) throw;
      throw DamagedCheckpoint(refusal.what());
    }
    check_filled();
    if (is_digested() && topology_.rank() == 0)
      leave_verified_marker(path_, contents_->certificate.root);
    for (Participant* participant : participants_) participant->restored();
    return result();
  }

 private:
  void read_metadata();
  void judge();
  void match();
  void fill();
  void fill_optimizer(std::size_t index, BlockReader& reader);
  void fill_blocks(std::size_t index, std::size_t first, std::size_t last, BlockReader& reader);
  void match_own(Differences& differences) const;
  void fill_own(BlockReader& reader);
  void check_filled();
  void compare_digest();
  RestoredControl result() const;

  /// All of the file goes into all of the run.
  bool is_complete() const { return options_.only.empty() && !options_.weights_only; }
  /// Then what came into the arrays is compared with what was saved.
  bool is_digested() const { return is_complete() && options_.verify == Verify::full; }
  std::string refused(const std::string& reason, const char* suggestion) const
  {
    return fmt::format("checkpoint {} is refused ({}); {}", path_.string(), reason, suggestion);
  }

  const Topology& topology_;
  MPI_Comm world_;
  fs::path path_;
  std::span<Participant* const> participants_;
  const RestoreOptions& options_;
  std::optional<Contents> contents_;
  std::vector<StateView> states_;
  std::vector<Match> matches_;
  std::vector<std::uint64_t> filled_;  ///< elements of each optimizer that this rank filled
  Cut cut_;
  std::vector<std::pair<std::size_t, std::size_t>> padding_;  ///< of the blocks that are filled
  std::uint64_t digest_ = 0;                                  ///< of what this rank filled
  std::vector<float> staging_;                                ///< on the way to a device
};

void Restore::read_metadata()
{
  contents_.emplace(read_and_share(path_, world_));
  path_ = contents_->path;
}

/// Everything that is compared before anything is overwritten.
void Restore::judge()
{
  match();
  const std::uint64_t samples = contents_->control.ledger.epoch_samples;
  if (options_.epoch_samples && samples != *options_.epoch_samples)
    throw CheckpointError(refused(fmt::format("its epoch has {} samples and this run's has {}",
                                              samples, *options_.epoch_samples),
                                  "give the data that it was trained on"));
}

void Restore::match()
{
  for (std::size_t i = 0; i < participants_.size(); ++i) {
    const StateView& state = states_[i];
    if (state.parameters == nullptr || state.plan == nullptr ||
        state.plan->size() != topology_.size() ||
        state.plan->model_parallel() != topology_.model_parallel())
      throw InvalidArgument(
          fmt::format("optimizer '{}' cannot be restored (its shard plan is not one of this job); "
                      "build it from the same topology",
                      participants_[i]->name()));
  }
  Differences differences;
  matches_ = Matcher(options_, contents_->manifest).match(participants_, states_, differences);
  match_own(differences);
  if (differences.any())
    throw CheckpointError(refused("it is of another model: " + differences.text(),
                                  "restore it into the model that was saved"));
}

void Restore::fill()
{
  filled_.assign(participants_.size(), 0);
  const bool owns_some = std::any_of(states_.begin(), states_.end(), [&](const StateView& s) {
    return !s.plan->shard(topology_.rank()).empty();
  });
  const bool has_own = options_.own != nullptr && !options_.own->empty();
  if (!owns_some && !has_own) return;
  const PosixFile file = PosixFile::open_to_read(path_);
  BlockReader reader(file, *contents_, options_.verify);
  for (std::size_t i = 0; i < participants_.size(); ++i)
    if (matches_[i].optimizer != Match::none) fill_optimizer(i, reader);
  if (has_own) fill_own(reader);
}

/// Both sides are in the order of their names.
void Restore::match_own(Differences& differences) const
{
  if (options_.own == nullptr) return;
  const auto compare = [&](const auto& here, const auto& there, const auto& differ,
                           const char* what) {
    for (std::size_t h = 0, t = 0; h < here.size() || t < there.size();) {
      if (t == there.size() || (h < here.size() && here[h].name < there[t].name))
        differences.add("own {} '{}' is missing", what, here[h++].name);
      else if (h == here.size() || there[t].name < here[h].name)
        differences.add("own {} '{}' is extra", what, there[t++].name);
      else
        differ(here[h++], there[t++]);
    }
  };
  const auto types = [&](const auto& here, const auto& there) {
    if (here.type != there.type)
      differences.add("'{}' is {} there and {} here", here.name, name_of(there.type),
                      name_of(here.type));
  };
  const Manifest& manifest = contents_->manifest;
  compare(
      options_.own->arrays(), manifest.own_arrays,
      [&](const OwnArrays::Array& here, const OwnArrayEntry& there) {
        types(here, there);
        if (here.shape != there.shape)
          differences.add("'{}' has shape {} there and {} here", here.name, shape_text(there.shape),
                          shape_text(here.shape));
      },
      "array");
  compare(options_.own->scalars(), manifest.own_scalars, types, "scalar");
}

void Restore::fill_own(BlockReader& reader)
{
  const Manifest& manifest = contents_->manifest;
  for (std::size_t i = 0; i < manifest.own_arrays.size(); ++i) {
    const OwnArrays::Array& wanted = options_.own->arrays()[i];
    read_own_part(reader, manifest.own_arrays[i], i, wanted.part, wanted.data);
  }
  for (std::size_t i = 0; i < manifest.own_scalars.size(); ++i) {
    const OwnArrays::Scalar& wanted = options_.own->scalars()[i];
    std::memcpy(wanted.value, &manifest.own_scalars[i].bits, bytes_of(wanted.type));
  }
}

void Restore::fill_optimizer(std::size_t index, BlockReader& reader)
{
  const ShardPlan& plan = *states_[index].plan;
  const std::vector<std::uint32_t>& shard = plan.shard(topology_.rank());
  const SlotLayout& slot = plan.layout(topology_.model_rank());
  const auto is_restored = [&](std::size_t b) {
    return matches_[index].parameters[slot.parameter_of(shard[b])] != Match::none;
  };
  for (std::size_t first = 0; first < shard.size();) {
    std::size_t last = first;
    while (last < shard.size() && last - first < blocks_at_a_time && is_restored(last)) ++last;
    if (last > first) fill_blocks(index, first, last, reader);
    first = std::max(last, first + 1);
  }
}

/// Blocks [first, last) of the shard, all of parameters that are restored.
void Restore::fill_blocks(std::size_t index, std::size_t first, std::size_t last,
                          BlockReader& reader)
{
  const StateView& state = states_[index];
  const Match& match = matches_[index];
  const FlatLayout& layout = contents_->layouts[match.optimizer];
  const std::vector<std::uint32_t>& shard = state.plan->shard(topology_.rank());
  const SlotLayout& slot = state.plan->layout(topology_.model_rank());
  cut_.clear();
  padding_.clear();
  for (std::size_t b = first; b < last; ++b) {
    const std::uint32_t p = slot.parameter_of(shard[b]);
    const Piece& piece = slot.piece(p);
    const std::size_t begin = (shard[b] - piece.first_block) * block_elements;
    const std::size_t end = std::min(piece.elements, begin + block_elements);
    if (end - begin < block_elements)
      padding_.emplace_back((b - first) * block_elements + (end - begin),
                            (b - first + 1) * block_elements);
    for (std::size_t e = begin; e < end;) {
      // Consecutive both in the file and in the shard.
      const auto run = layout.locate(match.parameters[p], piece.global_index(e));
      const std::size_t row_left = piece.inner - e % piece.inner;
      const std::size_t count = std::min({run.count, row_left, end - e});
      cut_.add(run.element * sizeof(float),
               ((b - first) * block_elements + (e - begin)) * sizeof(float), count * sizeof(float));
      e += count;
      filled_[index] += count;
    }
  }

  const std::size_t elements = (last - first) * block_elements;
  if (state.device != nullptr) staging_.resize(elements);
  for (std::size_t a = 0; a < state.arrays.size(); ++a) {
    float* const target = state.arrays[a].data + first * block_elements;
    float* const here = state.device != nullptr ? staging_.data() : target;
    if (match.arrays[a] == Match::none) {
      std::fill_n(here, elements, 0.0f);
    } else if (cut_.is_straight()) {
      reader.read(match.optimizer, match.arrays[a], cut_.blocks(), here);
    } else {
      reader.read(match.optimizer, match.arrays[a], cut_.blocks());
      cut_.take(reader.buffer(), here);
    }
    for (const auto& [begin, end] : padding_) std::fill(here + begin, here + end, 0.0f);
    if (is_digested())  // while it is in the cache
      for (std::size_t b = first; b < last; ++b)
        digest_ += state_digest_part(participants_[index]->name(), state, topology_.rank(),
                                     state.arrays[a].name, b, here + (b - first) * block_elements);
    if (state.device != nullptr) state.device->copy(target, here, elements * sizeof(float));
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
    for (std::size_t p = 0; p < matches_[i].parameters.size(); ++p) {
      if (matches_[i].parameters[p] == Match::none) continue;
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
  std::uint64_t digest = digest_;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &digest, 1, MPI_UINT64_T, MPI_SUM, world_),
            "MPI_Allreduce of the state digest");
  if (digest != contents_->certificate.state_digest)
    throw CheckpointError(
        refused(fmt::format("the restored state has digest {:016x} and its certificate {:016x}",
                            digest, contents_->certificate.state_digest),
                "restore another one"));
}

RestoredControl Restore::result() const
{
  RestoredControl out;
  out.configuration = contents_->metadata.configuration;
  out.step = contents_->certificate.step;
  out.state_digest = contents_->certificate.state_digest;
  out.format_version = contents_->metadata.format_version;
  out.ranks = contents_->manifest.ranks;
  out.model_parallel = contents_->manifest.model_parallel;
  if (options_.weights_only) return out;

  // The clocks of all optimizers' parameters lie one after the other, in the saved run's order.
  std::vector<std::size_t> first;
  std::size_t clocks = 0;
  for (const ManifestEntry& optimizer : contents_->manifest.optimizers) {
    first.push_back(clocks);
    clocks += optimizer.parameters.size();
  }
  out.control = contents_->control;
  out.control.clocks.clear();
  for (std::size_t i = 0; i < matches_.size(); ++i)
    for (std::size_t p = 0; p < states_[i].parameters->size(); ++p) {
      const Match& match = matches_[i];
      const bool restored = match.optimizer != Match::none && match.parameters[p] != Match::none;
      out.control.clocks.push_back(
          restored ? contents_->control.clocks[first[match.optimizer] + match.parameters[p]]
                   : ParameterClock{});
    }
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
  const QuietHdf5 quiet;
  return detail::read_metadata(file).configuration;
}

}  // namespace tutti
