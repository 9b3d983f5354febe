// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The file format, version 1 (io/README.md has it as a table).
#include "format.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "flat_layout.hpp"
#include "posix_file.hpp"
#include "tutti/checkpoint.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

using json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "blocks are hashed as they lie in memory, and in the file they are little-endian");

constexpr const char* version_attribute = "format_version";
constexpr const char* manifest_path = "/manifest";
constexpr const char* control_path = "/control_state";
constexpr const char* configuration_path = "/configuration";
constexpr const char* certificate_path = "/certificate";

/// What alignment and HDF5's own bookkeeping of one dataset take at most.
constexpr std::uint64_t slack = std::uint64_t{2} << 20;

/// As text, since JSON numbers beyond 2^53 lose bits in other languages.
std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(const json& field)
{
  const auto& text = field.get_ref<const std::string&>();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || hex(value) != text)
    throw CheckpointError(fmt::format("'{}' is not a hash", text));
  return value;
}

// --- places --------------------------------------------------------------------------------------

std::string valid_path(std::string_view name)
{
  std::string path;
  std::string component;
  const auto finish = [&] {
    // "" and "." vanish in an HDF5 path.
    if (component.empty() || component.find_first_not_of('.') == component.npos)
      component.append("_");
    path += "/" + component;
    component.clear();
  };
  for (const char c : name) {
    if (c == '/')
      finish();
    else
      component += static_cast<unsigned char>(c) < 0x20 ? '_' : c;
  }
  finish();
  return path;
}

/// Groups that were given away. One may lie in another, unless a dataset is in the way.
class Places {
 public:
  std::string take(const std::string& root, std::string_view name,
                   const std::vector<std::string>& datasets)
  {
    const std::string wanted = root + valid_path(name);
    std::string path = wanted;
    for (int i = 2; !is_free(path, datasets); ++i) path = fmt::format("{}~{}", wanted, i);
    taken_.insert(path);
    for (const std::string& group : prefixes(path)) groups_.insert(group);
    for (const std::string& name_of_dataset : datasets)
      datasets_.insert(path + "/" + name_of_dataset);
    return path;
  }

 private:
  static std::vector<std::string> prefixes(const std::string& path)
  {
    std::vector<std::string> out;
    for (std::size_t end = path.find('/', 1); end != path.npos; end = path.find('/', end + 1))
      out.push_back(path.substr(0, end));
    out.push_back(path);
    return out;
  }
  bool is_free(const std::string& path, const std::vector<std::string>& datasets) const
  {
    const auto groups = prefixes(path);
    return !taken_.contains(path) &&
           std::none_of(groups.begin(), groups.end(),
                        [&](const auto& group) { return datasets_.contains(group); }) &&
           std::none_of(datasets.begin(), datasets.end(), [&](const auto& dataset) {
             return groups_.contains(path + "/" + dataset) ||
                    datasets_.contains(path + "/" + dataset);
           });
  }
  std::set<std::string> taken_, groups_, datasets_;
};

// --- views ---------------------------------------------------------------------------------------

void create_views(hid_t file, const ManifestEntry& optimizer, const FlatLayout& layout)
{
  for (std::size_t p = 0; p < optimizer.parameters.size(); ++p) {
    const ParameterSpec& spec = optimizer.parameters[p];
    std::vector<VirtualSlab> slabs;
    for (const FlatLayout::FlatPiece& flat : layout.pieces(p)) {
      if (flat.piece.elements == 0) continue;
      VirtualSlab slab;
      slab.shape.assign(flat.piece.shape.begin(), flat.piece.shape.end());
      slab.begin.assign(slab.shape.size(), 0);
      if (spec.placement == Placement::split)
        slab.begin[static_cast<std::size_t>(spec.split_axis)] = flat.piece.axis_begin;
      if (slab.shape.empty()) {
        slab.shape = {1};
        slab.begin = {0};
      }
      slab.first_element = flat.first_block * block_elements;
      slabs.push_back(std::move(slab));
    }
    for (const std::string& array : optimizer.arrays)
      create_view(file, optimizer.views[p] + "/" + array, H5T_IEEE_F32LE, spec.shape, slabs,
                  optimizer.data_path(array), optimizer.blocks * block_elements);
  }
}

/// The code's own arrays in their real shapes.
void create_view_of(hid_t file, const OwnArrayEntry& array)
{
  std::vector<VirtualSlab> slabs;
  for (const SavedPart& saved : array.parts) {
    VirtualSlab slab;
    slab.begin.assign(saved.part.begin.begin(), saved.part.begin.end());
    slab.shape.assign(saved.part.extent.begin(), saved.part.extent.end());
    if (slab.shape.empty()) {
      slab.begin = {0};
      slab.shape = {1};
    }
    slab.first_element = saved.first_block * block_bytes / bytes_of(array.type);
    slabs.push_back(std::move(slab));
  }
  create_view(file, array.view_path(), hdf5_type(array.type), array.shape, slabs, array.data_path(),
              array.elements_in_file());
}

void write_table(hid_t file, const std::string& path, const std::vector<std::uint64_t>& table)
{
  Dataset dataset = create_flat(file, path, H5T_STD_U64LE, table.size());
  if (!table.empty())
    check_hdf5(
        H5Dwrite(dataset.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, table.data()),
        "H5Dwrite");
  dataset.close("H5Dclose");
}

void write_scalar(hid_t file, const OwnScalarEntry& scalar)
{
  const hid_t type = hdf5_type(scalar.type);
  Dataset dataset = create_flat(file, scalar.path, type, 1);
  check_hdf5(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &scalar.bits),
             "H5Dwrite");
  dataset.close("H5Dclose");
}

// --- reading -------------------------------------------------------------------------------------

std::vector<std::uint64_t> read_table(hid_t file, const std::string& path, std::size_t blocks)
{
  std::vector<std::uint64_t> table(blocks);
  if (blocks == 0) return table;
  const Dataset dataset(H5Dopen2(file, path.c_str(), H5P_DEFAULT), "H5Dopen");
  check_hdf5(H5Dread(dataset.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, table.data()),
             "H5Dread");
  return table;
}

void require(bool holds, const char* what)
{
  if (!holds) throw CheckpointError(fmt::format("{} does not have its hash", what));
}

Metadata read_judged(const std::filesystem::path& path)
{
  const FileHandle file = open_file(path, false);
  Metadata metadata;
  if (H5Aexists(file.get(), version_attribute) <= 0)
    throw CheckpointError(has_dataset(file.get(), "/optimizers")
                              ? "it is incomplete: the save did not end"
                              : "it is not a checkpoint of tutti");
  metadata.format_version = read_attribute(file.get(), version_attribute);
  if (metadata.format_version > checkpoint_format_version)
    throw CheckpointError(
        fmt::format("its format version {} is newer than {}, the last that this tutti reads",
                    metadata.format_version, checkpoint_format_version));
  if (metadata.format_version == 0) throw CheckpointError("there is no format version 0");
  if (!has_dataset(file.get(), certificate_path))
    throw CheckpointError("it is incomplete: the certificate is missing");

  metadata.certificate = read_text(file.get(), certificate_path);
  const Certificate certificate = certificate_from_json(metadata.certificate);
  metadata.manifest = read_text(file.get(), manifest_path);
  require(hash_text(metadata.manifest) == certificate.manifest, manifest_path);
  metadata.control_state = read_text(file.get(), control_path);
  require(hash_text(metadata.control_state) == certificate.control_state, control_path);
  metadata.configuration = read_text(file.get(), configuration_path);
  require(hash_text(metadata.configuration) == certificate.configuration, configuration_path);

  const Manifest manifest = manifest_from_json(metadata.manifest);
  std::size_t arrays = manifest.own_arrays.size();
  for (const ManifestEntry& optimizer : manifest.optimizers) arrays += optimizer.arrays.size();
  if (arrays != certificate.tables.size())
    throw CheckpointError("certificate and manifest do not have the same arrays");
  const auto find = [&](const std::string& data, hid_t type, std::uint64_t elements,
                        const std::string& hashes, std::size_t blocks) {
    ArrayPlace place;
    place.data = flat_offset(file.get(), data, type, elements);
    place.hashes = flat_offset(file.get(), hashes, H5T_STD_U64LE, blocks);
    const auto table = read_table(file.get(), hashes, blocks);
    require(hash_bytes(table.data(), table.size() * sizeof(std::uint64_t)) ==
                certificate.tables[metadata.places.size()],
            hashes.c_str());
    metadata.places.push_back(place);
  };
  for (const ManifestEntry& optimizer : manifest.optimizers)
    for (const std::string& array : optimizer.arrays)
      find(optimizer.data_path(array), H5T_IEEE_F32LE, optimizer.blocks * block_elements,
           optimizer.hash_path(array), optimizer.blocks);
  for (const OwnArrayEntry& array : manifest.own_arrays)
    find(array.data_path(), hdf5_type(array.type), array.elements_in_file(), array.hash_path(),
         array.blocks);
  return metadata;
}

}  // namespace

hid_t hdf5_type(ElementType type)
{
  switch (type) {
    case ElementType::uint8:
      return H5T_STD_U8LE;
    case ElementType::int32:
      return H5T_STD_I32LE;
    case ElementType::uint32:
      return H5T_STD_U32LE;
    case ElementType::int64:
      return H5T_STD_I64LE;
    case ElementType::uint64:
      return H5T_STD_U64LE;
    case ElementType::float32:
      return H5T_IEEE_F32LE;
    case ElementType::float64:
      break;
  }
  return H5T_IEEE_F64LE;
}

std::uint64_t hash_bytes(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

void assign_paths(Manifest& manifest)
{
  Places places;
  for (ManifestEntry& optimizer : manifest.optimizers) {
    std::vector<std::string> datasets = optimizer.arrays;
    datasets.push_back("hashes");
    optimizer.group = places.take("/optimizers", optimizer.name, datasets);
    optimizer.views.clear();
    for (std::size_t p = 0; p < optimizer.parameters.size(); ++p)
      optimizer.views.push_back(
          places.take("/parameters", optimizer.parameters[p].name, optimizer.arrays));
  }
  for (OwnArrayEntry& array : manifest.own_arrays)
    array.group = places.take("/arrays", array.name, {"data", "hashes", "values"});
  for (OwnScalarEntry& scalar : manifest.own_scalars)
    scalar.path = places.take("/scalars", scalar.name, {"value"}) + "/value";
}

std::string to_json(const Manifest& manifest)
{
  json optimizers = json::array();
  for (const ManifestEntry& optimizer : manifest.optimizers) {
    const FlatLayout layout(optimizer.parameters, manifest.model_parallel);
    json parameters = json::array();
    for (std::size_t p = 0; p < optimizer.parameters.size(); ++p) {
      const ParameterSpec& spec = optimizer.parameters[p];
      const bool split = spec.placement == Placement::split;
      parameters.push_back({{"name", spec.name},
                            {"shape", spec.shape},
                            {"precision", std::string(name_of(spec.precision))},
                            {"placement", split ? "split" : "replicated"},
                            {"split_axis", split ? json(spec.split_axis) : json(nullptr)},
                            {"first_block", layout.first_block(p)},
                            {"view", optimizer.views[p]}});
    }
    optimizers.push_back({{"name", optimizer.name},
                          {"group", optimizer.group},
                          {"arrays", optimizer.arrays},
                          {"blocks", optimizer.blocks},
                          {"parameters", parameters}});
  }
  json own_arrays = json::array();
  for (const OwnArrayEntry& array : manifest.own_arrays) {
    json parts = json::array();
    for (const SavedPart& saved : array.parts)
      parts.push_back({{"rank", saved.rank},
                       {"begin", saved.part.begin},
                       {"extent", saved.part.extent},
                       {"first_block", saved.first_block}});
    own_arrays.push_back({{"name", array.name},
                          {"type", std::string(name_of(array.type))},
                          {"shape", array.shape},
                          {"group", array.group},
                          {"blocks", array.blocks},
                          {"parts", parts}});
  }
  json own_scalars = json::array();
  for (const OwnScalarEntry& scalar : manifest.own_scalars)
    own_scalars.push_back({{"name", scalar.name},
                           {"type", std::string(name_of(scalar.type))},
                           {"bits", hex(scalar.bits)},
                           {"dataset", scalar.path}});
  const json out = {{"format", "tutti checkpoint"},
                    {"format_version", checkpoint_format_version},
                    {"block_elements", block_elements},
                    {"ranks", manifest.ranks},
                    {"model_parallel", manifest.model_parallel},
                    {"optimizers", optimizers},
                    {"own_arrays", own_arrays},
                    {"own_scalars", own_scalars}};
  return out.dump();
}

namespace {

ElementType type_from(const json& name)
{
  const auto type = element_type_named(name.get_ref<const std::string&>());
  if (!type) throw CheckpointError("the type of an own array is not known");
  return *type;
}

/// Files from before there were own arrays have none.
void read_own(const json& in, Manifest& manifest)
{
  for (const json& entry : in.value("own_arrays", json::array())) {
    OwnArrayEntry& array = manifest.own_arrays.emplace_back();
    entry.at("name").get_to(array.name);
    array.type = type_from(entry.at("type"));
    entry.at("shape").get_to(array.shape);
    entry.at("group").get_to(array.group);
    entry.at("blocks").get_to(array.blocks);
    std::size_t blocks = 0;
    for (const json& part : entry.at("parts")) {
      SavedPart& saved = array.parts.emplace_back();
      part.at("rank").get_to(saved.rank);
      part.at("begin").get_to(saved.part.begin);
      part.at("extent").get_to(saved.part.extent);
      part.at("first_block").get_to(saved.first_block);
      require_part_of(array.name, array.shape, saved.part);
      if (saved.first_block != blocks)
        throw CheckpointError("the parts of an own array do not lie where they should");
      blocks += own_blocks(saved.part, array.type);
    }
    if (blocks != array.blocks) throw CheckpointError("an own array does not fill its blocks");
    require_partition(array);
  }
  for (const json& entry : in.value("own_scalars", json::array()))
    manifest.own_scalars.push_back({entry.at("name").get<std::string>(),
                                    type_from(entry.at("type")), from_hex(entry.at("bits")),
                                    entry.at("dataset").get<std::string>()});
}

}  // namespace

Manifest manifest_from_json(const std::string& text)
{
  try {
    const json in = json::parse(text);
    Manifest manifest;
    if (in.at("block_elements").get<std::size_t>() != block_elements)
      throw CheckpointError("its blocks have another size");
    in.at("ranks").get_to(manifest.ranks);
    in.at("model_parallel").get_to(manifest.model_parallel);
    if (manifest.ranks < 1 || manifest.model_parallel < 1 ||
        manifest.ranks % manifest.model_parallel != 0)
      throw CheckpointError("its model-parallel degree is not one of its ranks");
    for (const json& entry : in.at("optimizers")) {
      ManifestEntry& optimizer = manifest.optimizers.emplace_back();
      entry.at("name").get_to(optimizer.name);
      entry.at("group").get_to(optimizer.group);
      entry.at("arrays").get_to(optimizer.arrays);
      entry.at("blocks").get_to(optimizer.blocks);
      for (const json& parameter : entry.at("parameters")) {
        ParameterSpec spec;
        parameter.at("name").get_to(spec.name);
        parameter.at("shape").get_to(spec.shape);
        const auto precision = precision_named(parameter.at("precision").get<std::string>());
        if (!precision) throw CheckpointError("a parameter's precision is not known");
        spec.precision = *precision;
        if (parameter.at("placement") == "split") {
          spec.placement = Placement::split;
          parameter.at("split_axis").get_to(spec.split_axis);
        }
        optimizer.views.push_back(parameter.at("view").get<std::string>());
        optimizer.parameters.add(std::move(spec));
      }
      const FlatLayout layout(optimizer.parameters, manifest.model_parallel);
      if (layout.blocks() != optimizer.blocks)
        throw CheckpointError("its parameters do not fill its blocks");
      for (std::size_t p = 0; p < layout.parameters(); ++p)
        if (entry.at("parameters")[p].at("first_block").get<std::size_t>() != layout.first_block(p))
          throw CheckpointError("its parameters do not lie where they should");
    }
    read_own(in, manifest);
    return manifest;
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("its manifest cannot be read: {}", error.what()));
  } catch (const InvalidArgument& error) {
    throw CheckpointError(fmt::format("its manifest cannot be read: {}", error.what()));
  }
}

std::string to_json(const Certificate& certificate)
{
  json tables = json::array();
  for (const std::uint64_t table : certificate.tables) tables.push_back(hex(table));
  const json body = {{"step", certificate.step},
                     {"attempt", certificate.attempt},
                     {"control_digest", hex(certificate.control_digest)},
                     {"ledger_digest", hex(certificate.ledger_digest)},
                     {"configuration_hash", hex(certificate.configuration_hash)},
                     {"state_digest", hex(certificate.state_digest)},
                     {"manifest", hex(certificate.manifest)},
                     {"control_state", hex(certificate.control_state)},
                     {"configuration", hex(certificate.configuration)},
                     {"tables", tables}};
  return json{{"certificate", body}, {"root", hex(hash_text(body.dump()))}}.dump();
}

Certificate certificate_from_json(const std::string& text)
{
  try {
    const json in = json::parse(text);
    const json& body = in.at("certificate");
    Certificate certificate;
    certificate.root = from_hex(in.at("root"));
    if (certificate.root != hash_text(body.dump()))
      throw CheckpointError("the certificate does not have its hash");
    body.at("step").get_to(certificate.step);
    body.at("attempt").get_to(certificate.attempt);
    certificate.control_digest = from_hex(body.at("control_digest"));
    certificate.ledger_digest = from_hex(body.at("ledger_digest"));
    certificate.configuration_hash = from_hex(body.at("configuration_hash"));
    certificate.state_digest = from_hex(body.at("state_digest"));
    certificate.manifest = from_hex(body.at("manifest"));
    certificate.control_state = from_hex(body.at("control_state"));
    certificate.configuration = from_hex(body.at("configuration"));
    for (const json& table : body.at("tables")) certificate.tables.push_back(from_hex(table));
    return certificate;
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("its certificate cannot be read: {}", error.what()));
  }
}

std::uint64_t room_for_payload(const Manifest& manifest)
{
  std::uint64_t bytes = slack;
  for (const ManifestEntry& optimizer : manifest.optimizers)
    bytes += optimizer.arrays.size() * (optimizer.blocks * block_bytes + slack) +
             2048 * optimizer.group.size();
  for (const OwnArrayEntry& array : manifest.own_arrays)
    bytes += array.blocks * block_bytes + slack + 2048 * array.group.size();
  return bytes;
}

std::uint64_t room_for_metadata(const Manifest& manifest, const Metadata& metadata)
{
  std::uint64_t bytes = 16 * slack + metadata.manifest.size() + metadata.control_state.size() +
                        metadata.configuration.size() + metadata.certificate.size();
  const auto slots = static_cast<std::uint64_t>(manifest.model_parallel);
  for (const ManifestEntry& optimizer : manifest.optimizers) {
    std::uint64_t a_view = 0;  // a group or more, a header, and the mapping of each slab
    for (std::size_t p = 0; p < optimizer.parameters.size(); ++p)
      a_view += 8192 + 2048 * optimizer.views[p].size() +
                slots * (512 + 64 * optimizer.parameters[p].shape.size());
    bytes += optimizer.arrays.size() * (optimizer.blocks * sizeof(std::uint64_t) + slack + a_view);
  }
  for (const OwnArrayEntry& array : manifest.own_arrays)
    bytes += array.blocks * sizeof(std::uint64_t) + slack + 8192 +
             array.parts.size() * (512 + 64 * array.shape.size());
  for (const OwnScalarEntry& scalar : manifest.own_scalars)
    bytes += 8192 + 2048 * scalar.path.size();
  return bytes;
}

void write_metadata(const std::filesystem::path& path, const Manifest& manifest,
                    const Metadata& metadata, const std::vector<std::vector<std::uint64_t>>& tables)
{
  // From here to its closing the file carries HDF5's mark of a file that is being written.
  FileHandle file = open_file(path, true);
  auto table = tables.begin();
  for (const ManifestEntry& optimizer : manifest.optimizers) {
    for (const std::string& array : optimizer.arrays) {
      write_table(file.get(), optimizer.hash_path(array), *table);
      ++table;
    }
    create_views(file.get(), optimizer, FlatLayout(optimizer.parameters, manifest.model_parallel));
  }
  for (const OwnArrayEntry& array : manifest.own_arrays) {
    write_table(file.get(), array.hash_path(), *table);
    ++table;
    create_view_of(file.get(), array);
  }
  for (const OwnScalarEntry& scalar : manifest.own_scalars) write_scalar(file.get(), scalar);
  write_text(file.get(), manifest_path, metadata.manifest);
  write_text(file.get(), control_path, metadata.control_state);
  write_text(file.get(), configuration_path, metadata.configuration);
  write_text(file.get(), certificate_path, metadata.certificate);
  write_attribute(file.get(), version_attribute, checkpoint_format_version);
  file.close("H5Fclose");
}

Metadata read_metadata(const std::filesystem::path& path)
{
  PosixFile::open_to_read(path).close();  // for the system's own words
  try {
    return read_judged(path);
  } catch (const Hdf5Failure& failure) {
    throw CheckpointError(
        fmt::format("checkpoint {} is refused ({}: it is damaged, cut off or no checkpoint); "
                    "restore another one",
                    path.string(), failure.what()));
  } catch (const CheckpointError& refusal) {
    throw CheckpointError(fmt::format("checkpoint {} is refused ({}); restore another one",
                                      path.string(), refusal.what()));
  }
}

}  // namespace tutti::detail
