// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The text form of an incident, and its files.
#include "tutti/incident.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tutti/error.hpp"

namespace tutti {
namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// JSON has no NaN and no infinity.
json number(double value)
{
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double to_double(const json& value)
{
  if (!value.is_string()) return value.get<double>();
  const auto& name = value.get_ref<const std::string&>();
  constexpr double inf = std::numeric_limits<double>::infinity();
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (name == "inf") return inf;
  if (name == "-inf") return -inf;
  throw IoError(fmt::format("'{}' is no number", name));
}

json to_json(const std::optional<Recomputation>& r)
{
  if (!r) return json();
  return {{"cause", name_of(r->cause)},  {"rank", r->rank},     {"other", r->other},
          {"comparable", r->comparable}, {"finite", r->finite}, {"other_finite", r->other_finite},
          {"repeats", r->repeats},       {"agrees", r->agrees}, {"failure", r->failure},
          {"text", explain(*r)}};
}

Recomputation to_recomputation(const json& in)
{
  Recomputation r;
  for (const Cause cause : {Cause::transient, Cause::machine, Cause::data})
    if (in.at("cause").get<std::string>() == name_of(cause)) r.cause = cause;
  in.at("rank").get_to(r.rank);
  in.at("other").get_to(r.other);
  in.at("comparable").get_to(r.comparable);
  in.at("finite").get_to(r.finite);
  in.at("other_finite").get_to(r.other_finite);
  in.at("repeats").get_to(r.repeats);
  in.at("agrees").get_to(r.agrees);
  in.at("failure").get_to(r.failure);
  return r;
}

json interval(Interval value) { return {value.begin, value.end}; }
Interval to_interval(const json& value)
{
  return {value.at(0).get<std::uint64_t>(), value.at(1).get<std::uint64_t>()};
}

template <class T>
json optional(const std::optional<T>& value)
{
  return value ? json(*value) : json();
}
template <class T>
std::optional<T> to_optional(const json& value)
{
  if (value.is_null()) return std::nullopt;
  return value.get<T>();
}

/// Equal bits, or both NaN.
bool same(double a, double b)
{
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

[[noreturn]] void fail(const fs::path& path, int error)
{
  throw IoError(fmt::format("{} cannot be written ({})", path.string(), std::strerror(error)));
}

/// The whole file or nothing: written and synced under another name, then renamed.
void write_file(const fs::path& path, const std::string& head, const void* data, std::size_t bytes)
{
  const fs::path temporary = path.parent_path() / ("." + path.filename().string() + ".tmp");
  std::FILE* const file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) fail(path, errno);
  errno = 0;
  const bool written = std::fwrite(head.data(), 1, head.size(), file) == head.size() &&
                       (bytes == 0 || std::fwrite(data, 1, bytes, file) == bytes) &&
                       std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  int error = errno;
  const bool closed = std::fclose(file) == 0;
  if (written && !closed) error = errno;
  if (written && closed && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  if (written && closed) error = errno;
  std::remove(temporary.c_str());
  fail(path, error);
}

/// Header of NumPy's format 1.0: magic, length, a literal of the description, padded to 64 bytes.
std::string npy_header(const NamedArray& array)
{
  std::string shape;
  for (std::size_t extent : array.shape) shape += fmt::format("{},", extent);
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", array.type, shape);
  constexpr std::size_t before = 10;
  text.append(63 - (before + text.size()) % 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

/// A name that no other incident has: another run, or the same one resumed, may have come to the
/// same attempt.
std::string free_stem(const fs::path& directory, std::uint64_t attempt)
{
  const std::string stem = fmt::format("incident-{:012}", attempt);
  std::string name = stem;
  for (int n = 2; fs::exists(directory / (name + ".json")); ++n)
    name = fmt::format("{}-{}", stem, n);
  return name;
}

}  // namespace

bool Incident::operator==(const Incident& o) const
{
  const bool losses = std::equal(micro_losses.begin(), micro_losses.end(), o.micro_losses.begin(),
                                 o.micro_losses.end(), same);
  const bool magnitudes = magnitude.has_value() == o.magnitude.has_value() &&
                          (!magnitude || same(*magnitude, *o.magnitude));
  const auto rest = [](const Incident& i) {
    return std::tie(i.step, i.attempt, i.verdict, i.reason, i.message, i.window, i.nonfinite,
                    i.ranks_with_nonfinite_loss, i.repeats, i.stage, i.rank, i.contributor_known,
                    i.before_synchronization, i.optimizer, i.parameter, i.element, i.value,
                    i.value_bits, i.count, i.array, i.micro, i.precision, i.positions, i.sample_ids,
                    i.failure_phase, i.failure_text, i.failure_code, i.mismatch, i.mismatch_least,
                    i.mismatch_greatest, i.replica_block, i.checkpoint, i.checkpoint_step,
                    i.array_files, i.file, i.write_error, i.node, i.data_parallel, i.model_parallel,
                    i.micro_batches, i.configuration, i.recomputation);
  };
  return losses && magnitudes && same(loss_scale, o.loss_scale) &&
         same(largest_finite, o.largest_finite) && rest(*this) == rest(o);
}

std::string to_json(const Incident& i)
{
  json out = {
      {"tutti_incident", 1},
      {"step", i.step},
      {"attempt", i.attempt},
      {"verdict", i.verdict},
      {"reason", i.reason},
      {"message", i.message},
      {"window", interval(i.window)},
      {"nonfinite", i.nonfinite},
      {"ranks_with_nonfinite_loss", i.ranks_with_nonfinite_loss},
      {"repeats", i.repeats},
      {"loss_scale", number(i.loss_scale)},
      {"largest_finite", number(i.largest_finite)},
      {"stage", i.stage},
      {"rank", i.rank},
      {"node", i.node},
      {"contributor_known", i.contributor_known},
      {"before_synchronization", i.before_synchronization},
      {"optimizer", i.optimizer},
      {"parameter", i.parameter},
      {"element", i.element},
      {"value", i.value},
      {"value_bits", i.value_bits},
      {"count", i.count},
      {"array", i.array},
      {"micro", optional(i.micro)},
      {"magnitude", i.magnitude ? number(*i.magnitude) : json()},
      {"precision",
       {{"forward", i.precision.forward},
        {"gradients", i.precision.gradients},
        {"wire", i.precision.wire},
        {"master", i.precision.master},
        {"arithmetic", i.precision.arithmetic}}},
      {"micro_losses", json::array()},
      {"positions", interval(i.positions)},
      {"sample_ids", i.sample_ids},
      {"recomputation", to_json(i.recomputation)},
      {"failure", {{"phase", i.failure_phase}, {"text", i.failure_text}, {"code", i.failure_code}}},
      {"mismatch",
       {{"field", i.mismatch}, {"least", i.mismatch_least}, {"greatest", i.mismatch_greatest}}},
      {"replica_block", optional(i.replica_block)},
      {"checkpoint", {{"path", i.checkpoint}, {"step", i.checkpoint_step}}},
      {"job",
       {{"data_parallel", i.data_parallel},
        {"model_parallel", i.model_parallel},
        {"micro_batches", i.micro_batches}}},
      {"configuration", json::parse(i.configuration, nullptr, false)},
      {"array_files", i.array_files},
      {"file", i.file},
      {"write_error", i.write_error},
  };
  if (out["configuration"].is_discarded()) out["configuration"] = nullptr;
  for (double loss : i.micro_losses) out["micro_losses"].push_back(number(loss));
  // An exception's text may hold anything.
  return out.dump(1, ' ', false, json::error_handler_t::replace);
}

Incident incident_from_json(const std::string& text)
{
  try {
    const json in = json::parse(text);
    const int version = in.at("tutti_incident").get<int>();
    if (version != 1)
      throw IoError(fmt::format(
          "incident cannot be read (version {}, this tutti knows 1); use a newer tutti", version));
    Incident i;
    in.at("step").get_to(i.step);
    in.at("attempt").get_to(i.attempt);
    in.at("verdict").get_to(i.verdict);
    in.at("reason").get_to(i.reason);
    in.at("message").get_to(i.message);
    i.window = to_interval(in.at("window"));
    in.at("nonfinite").get_to(i.nonfinite);
    in.at("ranks_with_nonfinite_loss").get_to(i.ranks_with_nonfinite_loss);
    in.at("repeats").get_to(i.repeats);
    i.loss_scale = to_double(in.at("loss_scale"));
    i.largest_finite = to_double(in.at("largest_finite"));
    in.at("stage").get_to(i.stage);
    in.at("rank").get_to(i.rank);
    in.at("contributor_known").get_to(i.contributor_known);
    in.at("before_synchronization").get_to(i.before_synchronization);
    in.at("optimizer").get_to(i.optimizer);
    in.at("parameter").get_to(i.parameter);
    in.at("element").get_to(i.element);
    in.at("value").get_to(i.value);
    in.at("value_bits").get_to(i.value_bits);
    in.at("count").get_to(i.count);
    in.at("array").get_to(i.array);
    i.micro = to_optional<std::uint32_t>(in.at("micro"));
    if (!in.at("magnitude").is_null()) i.magnitude = to_double(in.at("magnitude"));
    const json& precision = in.at("precision");
    precision.at("forward").get_to(i.precision.forward);
    precision.at("gradients").get_to(i.precision.gradients);
    precision.at("wire").get_to(i.precision.wire);
    precision.at("master").get_to(i.precision.master);
    precision.at("arithmetic").get_to(i.precision.arithmetic);
    for (const json& loss : in.at("micro_losses")) i.micro_losses.push_back(to_double(loss));
    i.positions = to_interval(in.at("positions"));
    in.at("sample_ids").get_to(i.sample_ids);
    const json& failure = in.at("failure");
    failure.at("phase").get_to(i.failure_phase);
    failure.at("text").get_to(i.failure_text);
    failure.at("code").get_to(i.failure_code);
    const json& mismatch = in.at("mismatch");
    mismatch.at("field").get_to(i.mismatch);
    mismatch.at("least").get_to(i.mismatch_least);
    mismatch.at("greatest").get_to(i.mismatch_greatest);
    i.replica_block = to_optional<std::uint64_t>(in.at("replica_block"));
    in.at("checkpoint").at("path").get_to(i.checkpoint);
    in.at("checkpoint").at("step").get_to(i.checkpoint_step);
    in.at("array_files").get_to(i.array_files);
    i.node = in.value("node", "");  // what follows was not written from the first
    const json job = in.value("job", json::object());
    i.data_parallel = job.value("data_parallel", 0u);
    i.model_parallel = job.value("model_parallel", 0u);
    i.micro_batches = job.value("micro_batches", 0u);
    const json configuration = in.value("configuration", json());
    const json recomputation = in.value("recomputation", json());
    if (!recomputation.is_null()) i.recomputation = to_recomputation(recomputation);
    if (configuration.is_object()) i.configuration = configuration.dump();
    in.at("file").get_to(i.file);
    in.at("write_error").get_to(i.write_error);
    return i;
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("incident cannot be read ({}); give a file that tutti train wrote",
                              error.what()));
  }
}

Incident read_incident(const fs::path& file)
{
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || fs::is_directory(file))
    throw IoError(fmt::format("incident {} cannot be read ({}); give an existing file",
                              file.string(), std::strerror(errno != 0 ? errno : EISDIR)));
  try {
    return incident_from_json(text);
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

std::vector<fs::path> list_incidents(const fs::path& directory)
{
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.rfind("incident-", 0) == 0 && at->path().extension() == ".json")
      files.push_back(at->path());
  }
  if (error)
    throw IoError(fmt::format("folder {} cannot be read ({}); give the --incident-dir of a run",
                              directory.string(), error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

void write_incident(Incident& incident, const std::vector<NamedArray>& arrays,
                    const fs::path& directory) noexcept
{
  try {
    try {
      fs::create_directories(directory);
      const std::string stem = free_stem(directory, incident.attempt);
      for (const NamedArray& array : arrays) {
        const std::string name = fmt::format("{}.{}.npy", stem, array.name);
        write_file(directory / name, npy_header(array), array.bytes.data(), array.bytes.size());
        incident.array_files.push_back(name);
      }
      const fs::path path = directory / (stem + ".json");
      incident.file = path.string();
      write_file(path, to_json(incident) + "\n", nullptr, 0);
    } catch (const std::exception& error) {
      incident.file.clear();
      incident.write_error = error.what();
    }
  } catch (...) {  // no memory even for the reason
  }
}

}  // namespace tutti
