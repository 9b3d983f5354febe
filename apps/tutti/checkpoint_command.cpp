// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Each action makes one text and says whether all was well. What a checkpoint is, io/ knows.
#include "checkpoint_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tutti/checkpoint_file.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

struct Answer {
  std::string text;
  bool good = true;
};

std::string size_text(std::uintmax_t bytes)
{
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
  return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
}

std::string age_text(double seconds)
{
  if (seconds < 120) return fmt::format("{:.0f} s", std::max(0.0, seconds));
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

// --- ls ------------------------------------------------------------------------------------------

json entry_of(const fs::path& path, const std::string& latest)
{
  json entry = {{"file", path.filename().string()}};
  std::error_code gone;  // a link to nowhere, or removed meanwhile
  const auto bytes = fs::file_size(path, gone);
  const auto time = gone ? fs::file_time_type::clock::now() : fs::last_write_time(path, gone);
  entry["bytes"] = gone ? 0 : bytes;
  const auto age = fs::file_time_type::clock::now() - time;
  entry["age_seconds"] = std::chrono::duration<double>(age).count();
  entry["latest"] = path.filename() == latest;
  try {
    const CheckpointFile file(path);
    entry["step"] = file.step();
    entry["verified"] = file.is_marked_verified();
    entry["pinned"] = file.is_pinned();
  } catch (const Error& refusal) {
    entry["refused"] = refusal.what();
  }
  return entry;
}

Answer list(const CheckpointRequest& request)
{
  const fs::path directory = request.paths.at(0);
  if (std::error_code ignored; !fs::is_directory(directory, ignored))
    throw ConfigError(
        fmt::format("{} cannot be listed (it is no directory); give a folder of "
                    "checkpoints",
                    directory.string()));
  std::string latest;
  std::ifstream pointer(directory / "latest");
  std::getline(pointer, latest);
  Answer answer;
  json entries = json::array();
  for (const fs::path& path : checkpoint_files(directory)) {
    entries.push_back(entry_of(path, latest));
    answer.good = answer.good && !entries.back().contains("refused");
  }
  if (request.json) {
    answer.text = entries.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
    return answer;
  }
  if (entries.empty()) answer.text = fmt::format("no checkpoints in {}\n", directory.string());
  for (const json& entry : entries) {
    std::vector<std::string> words;
    if (entry.contains("refused")) {
      words.push_back(entry["refused"]);
    } else {
      words.push_back(fmt::format("step {}", entry["step"].get<std::uint64_t>()));
      words.push_back(entry["verified"] ? "verified" : "not verified yet");
      if (entry["pinned"]) words.push_back("pinned");
    }
    if (entry["latest"]) words.push_back("latest");
    answer.text +=
        fmt::format("{}  {:>10}  {:>8}  {}\n", entry["file"].get<std::string>(),
                    size_text(entry["bytes"].get<std::uintmax_t>()),
                    age_text(entry["age_seconds"].get<double>()), fmt::join(words, ", "));
  }
  return answer;
}

// --- verify --------------------------------------------------------------------------------------

/// Collective over `world` if there is one.
Answer verify(const CheckpointRequest& request, MPI_Comm world)
{
  Answer answer;
  for (const std::string& path : request.paths) {
    std::string refusal;
    CheckpointVerification found;
    try {
      found = world == MPI_COMM_NULL ? verify_checkpoint(path) : verify_checkpoint(path, world);
    } catch (const CheckpointError& error) {  // on all ranks the same
      refusal = error.what();
    } catch (const IoError& error) {
      refusal = error.what();
    }
    if (refusal.empty() && found.damaged == 0) {
      answer.text += fmt::format(
          "{}: good (step {}, {} blocks compared with their hashes, certificate {:016x})\n", path,
          found.step, found.blocks, found.root);
      continue;
    }
    answer.good = false;
    answer.text += refusal.empty() ? fmt::format("{}: bad ({} of {} blocks)\n", path, found.damaged,
                                                 found.blocks)
                                   : fmt::format("{}: bad\n  {}\n", path, refusal);
    for (const std::string& reason : found.reasons) answer.text += fmt::format("  {}\n", reason);
    if (found.damaged > found.reasons.size())
      answer.text += fmt::format("  and {} more\n", found.damaged - found.reasons.size());
  }
  return answer;
}

// --- diff ----------------------------------------------------------------------------------------

/// Where one array of one parameter differs.
class ArrayDifference {
 public:
  template <class T>
  void take(std::uint64_t first, std::span<const T> a, std::span<const T> b)
  {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;
      const std::uint64_t at = first + i;
      ++elements_;
      const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      if (elements_ == 1 || distance > largest_) {
        largest_ = distance;
        largest_at_ = at;
      }
      if (end_ == at && ranges_ > 0) {
        ++end_;
        if (ranges_ <= shown_.size()) shown_.back().second = end_;
        continue;
      }
      end_ = at + 1;
      if (++ranges_ <= most_shown) shown_.emplace_back(at, end_);
    }
  }
  /// Elements of `type` as they lie in memory.
  void take(ElementType type, std::span<const std::byte> a, std::span<const std::byte> b)
  {
    switch (type) {
      case ElementType::uint8:
        return take_as<std::uint8_t>(a, b);
      case ElementType::int32:
        return take_as<std::int32_t>(a, b);
      case ElementType::uint32:
        return take_as<std::uint32_t>(a, b);
      case ElementType::int64:
        return take_as<std::int64_t>(a, b);
      case ElementType::uint64:
        return take_as<std::uint64_t>(a, b);
      case ElementType::float32:
        return take_as<float>(a, b);
      case ElementType::float64:
        return take_as<double>(a, b);
    }
  }
  bool any() const { return elements_ > 0; }
  std::string text() const
  {
    std::string ranges;
    for (const auto& [begin, end] : shown_) ranges += fmt::format(" [{}, {})", begin, end);
    if (ranges_ > shown_.size()) ranges += fmt::format(" and {} more", ranges_ - shown_.size());
    return fmt::format("{} elements differ, in{}; by at most {:.9g}, at {}", elements_, ranges,
                       largest_, largest_at_);
  }

 private:
  template <class T>
  void take_as(std::span<const std::byte> a, std::span<const std::byte> b)
  {
    const auto view = [](std::span<const std::byte> bytes) {
      return std::span(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
    };
    take(0, view(a), view(b));
  }

  static constexpr std::size_t most_shown = 4;
  std::uint64_t elements_ = 0, ranges_ = 0, end_ = 0, largest_at_ = 0;
  double largest_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> shown_;
};

class Difference {
 public:
  Difference(const std::string& a, const std::string& b) : a_(a), b_(b) {}

  Answer answer()
  {
    compare_texts("control state", a_.control_state(), b_.control_state());
    compare_texts("configuration", a_.configuration(), b_.configuration());
    for (const auto& one : a_.optimizers()) {
      const auto other = find(b_, one.name);
      if (other == nullptr)
        line("optimizer '{}' is only in {}", one.name, a_.path().string());
      else
        compare(one, *other);
    }
    for (const auto& other : b_.optimizers())
      if (find(a_, other.name) == nullptr)
        line("optimizer '{}' is only in {}", other.name, b_.path().string());
    compare_own();
    if (text_.empty()) return {"equal\n", true};
    return {text_, false};
  }

 private:
  template <class... Parts>
  void line(fmt::format_string<Parts...> format, Parts&&... parts)
  {
    text_ += fmt::format(format, std::forward<Parts>(parts)...) + "\n";
  }

  static const CheckpointFile::Optimizer* find(const CheckpointFile& file, const std::string& name)
  {
    for (const auto& optimizer : file.optimizers())
      if (optimizer.name == name) return &optimizer;
    return nullptr;
  }

  void compare_texts(const char* what, const std::string& a, const std::string& b)
  {
    const json one = json::parse(a), other = json::parse(b);
    if (one == other) return;
    if (!one.is_object() || !other.is_object()) return line("{} differs", what);
    for (const auto& [key, value] : one.items()) {
      if (!other.contains(key))
        line("{}: {} is only in {}", what, key, a_.path().string());
      else if (other[key] != value && value.dump().size() + other[key].dump().size() < 100)
        line("{}: {} is {} and {}", what, key, value.dump(), other[key].dump());
      else if (other[key] != value)
        line("{}: {} differs", what, key);
    }
    for (const auto& [key, value] : other.items())
      if (!one.contains(key)) line("{}: {} is only in {}", what, key, b_.path().string());
  }

  void compare(const CheckpointFile::Optimizer& one, const CheckpointFile::Optimizer& other)
  {
    std::vector<std::string> arrays;
    for (const std::string& array : one.arrays)
      if (std::count(other.arrays.begin(), other.arrays.end(), array) != 0)
        arrays.push_back(array);
      else
        line("array {} of '{}' is only in {}", array, one.name, a_.path().string());
    for (const std::string& array : other.arrays)
      if (std::count(one.arrays.begin(), one.arrays.end(), array) == 0)
        line("array {} of '{}' is only in {}", array, one.name, b_.path().string());

    std::vector<bool> used(other.parameters.size());
    for (std::size_t p = 0; p < one.parameters.size(); ++p) {
      const ParameterSpec& spec = one.parameters[p];
      std::size_t q = 0;
      while (q < used.size() && other.parameters[q].name != spec.name) ++q;
      if (q == used.size()) {
        line("{}/{} is only in {}", one.name, spec.name, a_.path().string());
        continue;
      }
      used[q] = true;
      compare_parameter(one.name, spec, other.parameters[q], arrays);
    }
    for (std::size_t q = 0; q < used.size(); ++q)
      if (!used[q])
        line("{}/{} is only in {}", one.name, other.parameters[q].name, b_.path().string());
  }

  void compare_own()
  {
    const auto find_own = [](const CheckpointFile& file, const std::string& name) {
      const auto& own = file.own();
      return std::find_if(own.begin(), own.end(), [&](const auto& o) { return o.name == name; });
    };
    for (const auto& one : a_.own()) {
      const auto other = find_own(b_, one.name);
      if (other == b_.own().end()) {
        line("own '{}' is only in {}", one.name, a_.path().string());
      } else if (one.type != other->type || one.shape != other->shape) {
        line("own '{}' is {} [{}] and {} [{}]", one.name, name_of(one.type),
             fmt::join(one.shape, ", "), name_of(other->type), fmt::join(other->shape, ", "));
      } else {
        ArrayDifference difference;
        difference.take(one.type, a_.read_own(one.name), b_.read_own(one.name));
        if (difference.any()) line("own '{}': {}", one.name, difference.text());
      }
    }
    for (const auto& other : b_.own())
      if (find_own(a_, other.name) == a_.own().end())
        line("own '{}' is only in {}", other.name, b_.path().string());
  }

  void compare_parameter(const std::string& optimizer, const ParameterSpec& one,
                         const ParameterSpec& other, const std::vector<std::string>& arrays)
  {
    if (one.precision != other.precision)
      line("{}/{} has precision {} and {}", optimizer, one.name, name_of(one.precision),
           name_of(other.precision));
    if (one.shape != other.shape) {
      line("{}/{} has shape [{}] and [{}]", optimizer, one.name, fmt::join(one.shape, ", "),
           fmt::join(other.shape, ", "));
      return;
    }
    constexpr std::uint64_t chunk = std::uint64_t{1} << 20;
    const std::uint64_t elements = one.elements();
    for (const std::string& array : arrays) {
      ArrayDifference difference;
      for (std::uint64_t first = 0; first < elements; first += chunk) {
        a_values_.resize(std::min(chunk, elements - first));
        b_values_.resize(a_values_.size());
        a_.read(optimizer, one.name, array, first, a_values_);
        b_.read(optimizer, one.name, array, first, b_values_);
        difference.take<float>(first, a_values_, b_values_);
      }
      if (difference.any()) line("{}/{} {}: {}", optimizer, one.name, array, difference.text());
    }
  }

  CheckpointFile a_, b_;
  std::vector<float> a_values_, b_values_;
  std::string text_;
};

// --- show ----------------------------------------------------------------------------------------

json json_of(const CheckpointFile& file)
{
  json optimizers = json::array();
  for (const auto& optimizer : file.optimizers()) {
    json parameters = json::array();
    for (std::size_t p = 0; p < optimizer.parameters.size(); ++p) {
      const ParameterSpec& spec = optimizer.parameters[p];
      const bool split = spec.placement == Placement::split;
      parameters.push_back({{"name", spec.name},
                            {"shape", spec.shape},
                            {"precision", std::string(name_of(spec.precision))},
                            {"placement", split ? "split" : "replicated"},
                            {"split_axis", split ? json(spec.split_axis) : json(nullptr)},
                            {"view", optimizer.views[p]}});
    }
    optimizers.push_back({{"name", optimizer.name},
                          {"arrays", optimizer.arrays},
                          {"blocks", optimizer.blocks},
                          {"parameters", parameters}});
  }
  json own = json::array();
  for (const auto& array : file.own())
    own.push_back({{"name", array.name},
                   {"type", std::string(name_of(array.type))},
                   {"shape", array.shape},
                   {"dataset", array.dataset}});
  return {{"file", file.path().string()},
          {"format_version", file.format_version()},
          {"step", file.step()},
          {"attempt", file.attempt()},
          {"ranks", file.ranks()},
          {"model_parallel", file.model_parallel()},
          {"root", fmt::format("{:016x}", file.root())},
          {"state_digest", fmt::format("{:016x}", file.state_digest())},
          {"verified", file.is_marked_verified()},
          {"pinned", file.is_pinned()},
          {"optimizers", optimizers},
          {"own", own},
          {"control_state", json::parse(file.control_state())},
          {"configuration", json::parse(file.configuration())},
          {"certificate", json::parse(file.certificate())}};
}

std::string intervals_text(const std::vector<Interval>& intervals)
{
  if (intervals.empty()) return " none";
  std::string text;
  for (const Interval interval : intervals)
    text += fmt::format(" [{}, {})", interval.begin, interval.end);
  return text;
}

std::string parameter_table(const CheckpointFile::Optimizer& optimizer)
{
  std::size_t width = 4;
  for (std::size_t p = 0; p < optimizer.parameters.size(); ++p)
    width = std::max(width, optimizer.parameters[p].name.size());
  std::string text;
  for (std::size_t p = 0; p < optimizer.parameters.size(); ++p) {
    const ParameterSpec& spec = optimizer.parameters[p];
    const std::string placement = spec.placement == Placement::split
                                      ? fmt::format("split along axis {}", spec.split_axis)
                                      : "replicated";
    text +=
        fmt::format("  {:<{}}  {:>12} elements  {}  {}, [{}]\n", spec.name, width, spec.elements(),
                    name_of(spec.precision), placement, fmt::join(spec.shape, ", "));
  }
  return text;
}

Answer show(const CheckpointRequest& request)
{
  const CheckpointFile file(request.paths.at(0));
  if (request.json)
    return {json_of(file).dump(2, ' ', false, json::error_handler_t::replace) + "\n", true};
  const ControlState& control = file.control();
  std::string text = fmt::format(
      "{}\nformat version {}, step {}, attempt {}, saved on {} ranks (model-parallel {}), {}{}\n"
      "certificate {:016x}, state digest {:016x}\n",
      file.path().string(), file.format_version(), file.step(), file.attempt(), file.ranks(),
      file.model_parallel(), file.is_marked_verified() ? "verified" : "not verified yet",
      file.is_pinned() ? ", pinned" : "", file.root(), file.state_digest());
  for (const auto& optimizer : file.optimizers())
    text += fmt::format("optimizer {}: {} ({} blocks each)\n{}", optimizer.name,
                        fmt::join(optimizer.arrays, ", "), optimizer.blocks,
                        parameter_table(optimizer));
  for (const auto& own : file.own())
    text +=
        fmt::format("own {}: {} [{}]\n", own.name, name_of(own.type), fmt::join(own.shape, ", "));
  text += fmt::format(
      "control state: loss scale {:g}, {} good updates since it moved, {} skips in a row\n",
      control.loss_scale, control.growth_tracker, control.consecutive_skips);
  for (std::size_t r = 0; r < reason_count; ++r)
    if (control.skips[r] > 0)
      text +=
          fmt::format("  skipped for {}: {}\n", name_of(static_cast<Reason>(r)), control.skips[r]);
  text += fmt::format(
      "ledger: {} samples committed, {} dropped, next position {}, epoch of {}\n  committed:{}\n"
      "  dropped:{}\n  due for replay:{}\n",
      control.ledger.committed_samples(), control.ledger.dropped_samples(), control.ledger.next,
      control.ledger.epoch_samples, intervals_text(control.ledger.committed),
      intervals_text(control.ledger.dropped), intervals_text(control.ledger.replay));
  text += fmt::format("configuration: {}\n", file.configuration());
  return {text, true};
}

Answer look(const CheckpointRequest& request)
{
  if (request.action == "ls") return list(request);
  if (request.action == "show") return show(request);
  return Difference(request.paths.at(0), request.paths.at(1)).answer();
}

}  // namespace

ExitCode checkpoint_command(const CheckpointRequest& request, MPI_Comm world)
{
  int rank = 0;
  Answer answer;
  if (world != MPI_COMM_NULL) check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  if (request.action == "verify") {
    answer = verify(request, world);
  } else if (world == MPI_COMM_NULL) {
    answer = look(request);
  } else {
    collectively(world, [&] {
      if (rank == 0) answer = look(request);
    });
    int good = answer.good ? 1 : 0;
    check_mpi(MPI_Bcast(&good, 1, MPI_INT, 0, world), "MPI_Bcast");
    answer.good = good == 1;
  }
  if (rank == 0) std::fputs(answer.text.c_str(), stdout);
  return answer.good ? ExitCode::ok : ExitCode::error;
}

}  // namespace tutti::apps
