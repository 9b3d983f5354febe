// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The public reader, over the same contents, blocks and cuts as a restore.
#include "tutti/checkpoint_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "block_reader.hpp"
#include "contents.hpp"
#include "directory.hpp"
#include "hdf5.hpp"
#include "marker.hpp"
#include "packed.hpp"
#include "posix_file.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

namespace tutti {
namespace {

using namespace detail;
namespace fs = std::filesystem;

/// Reasons that a verification reports, of a rank and of all.
constexpr std::size_t most_reasons = 8;

Contents contents_of(const fs::path& path)
{
  const QuietHdf5 quiet;
  try {
    return read_contents(path);
  } catch (const CheckpointError& refusal) {
    throw DamagedCheckpoint(refusal.what());
  }
}

/// Damage among blocks [begin, end) of all arrays, counted one after the other.
std::vector<std::string> damage_in(const Contents& contents, const PosixFile& file,
                                   std::uint64_t begin, std::uint64_t end)
{
  std::vector<std::string> damage;
  BlockReader reader(file, contents, Verify::full);
  std::vector<std::size_t> blocks;
  std::uint64_t first = 0;  // of the array
  // `read(blocks)` of the next array, which has `count` of them.
  const auto look_at = [&](std::uint64_t count, const auto& read) {
    const auto read_range = [&](std::uint64_t from, std::uint64_t to) {
      blocks.clear();
      for (std::uint64_t b = from; b < to; ++b) blocks.push_back(b - first);
      read(blocks);
    };
    const std::uint64_t stop = std::min(first + count, end);
    for (std::uint64_t at = std::max(first, begin); at < stop;) {
      const std::uint64_t next = std::min<std::uint64_t>(stop, at + blocks_at_a_time);
      try {
        read_range(at, next);
      } catch (const CheckpointError&) {
        for (std::uint64_t b = at; b < next; ++b) try {
            read_range(b, b + 1);
          } catch (const CheckpointError& bad) {
            damage.emplace_back(bad.what());
          }
      }
      at = next;
    }
    first += count;
  };
  const Manifest& manifest = contents.manifest;
  for (std::size_t o = 0; o < manifest.optimizers.size(); ++o)
    for (std::size_t a = 0; a < manifest.optimizers[o].arrays.size(); ++a)
      look_at(manifest.optimizers[o].blocks,
              [&](std::span<const std::size_t> wanted) { reader.read(o, a, wanted); });
  for (std::size_t a = 0; a < manifest.own_arrays.size(); ++a)
    look_at(manifest.own_arrays[a].blocks,
            [&](std::span<const std::size_t> wanted) { reader.read_own(a, wanted); });
  return damage;
}

std::uint64_t blocks_in(const Contents& contents)
{
  std::uint64_t blocks = 0;
  for (const ManifestEntry& optimizer : contents.manifest.optimizers)
    blocks += optimizer.arrays.size() * optimizer.blocks;
  for (const OwnArrayEntry& array : contents.manifest.own_arrays) blocks += array.blocks;
  return blocks;
}

void mark(const fs::path& path, const CheckpointVerification& result) noexcept
{
  if (result.damaged == 0)
    leave_verified_marker(path, result.root);
  else
    drop_verified_marker(path);
}

/// Collective: the first `most` lines in the order of ranks, on all of them.
std::vector<std::string> gather_lines(MPI_Comm communicator, const std::vector<std::string>& mine,
                                      std::size_t most)
{
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  std::string text;
  for (const std::string& line : mine) text += line + '\0';
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<std::size_t>(size)), begins(lengths.size());
  check_mpi(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, communicator),
            "MPI_Gather");
  for (std::size_t r = 1; r < begins.size(); ++r) begins[r] = begins[r - 1] + lengths[r - 1];
  std::string all(rank == 0 ? static_cast<std::size_t>(begins.back() + lengths.back()) : 0, ' ');
  check_mpi(MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                        MPI_CHAR, 0, communicator),
            "MPI_Gatherv");
  broadcast_text(communicator, all, 0);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < all.size() && lines.size() < most;) {
    const std::size_t end = all.find('\0', at);
    lines.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

template <class List, class Name>
std::size_t index_of(const List& list, Name name, std::string_view wanted, const char* kind,
                     const fs::path& path)
{
  for (std::size_t i = 0; i < list.size(); ++i)
    if (name(list[i]) == wanted) return i;
  throw InvalidArgument(
      fmt::format("checkpoint {} has no {} '{}' (see tutti checkpoint show); give "
                  "a name that is there",
                  path.string(), kind, wanted));
}

}  // namespace

struct CheckpointFile::Impl {
  explicit Impl(const fs::path& path)
      : contents(contents_of(path)), file(PosixFile::open_to_read(path))
  {
    for (const ManifestEntry& entry : contents.manifest.optimizers)
      optimizers.push_back({entry.name, entry.arrays, entry.parameters, entry.views, entry.blocks});
    for (const OwnArrayEntry& entry : contents.manifest.own_arrays)
      own.push_back({entry.name, entry.type, entry.shape, entry.view_path()});
    for (const OwnScalarEntry& entry : contents.manifest.own_scalars)
      own.push_back({entry.name, entry.type, {}, entry.path});
  }
  Contents contents;
  PosixFile file;
  std::vector<Optimizer> optimizers;
  std::vector<Own> own;
};

CheckpointFile::CheckpointFile(const fs::path& path) : impl_(std::make_unique<Impl>(path)) {}
CheckpointFile::CheckpointFile(CheckpointFile&&) noexcept = default;
CheckpointFile& CheckpointFile::operator=(CheckpointFile&&) noexcept = default;
CheckpointFile::~CheckpointFile() = default;

const fs::path& CheckpointFile::path() const { return impl_->contents.path; }
fs::file_time_type CheckpointFile::time() const
{
  std::error_code error;
  const auto time = fs::last_write_time(path(), error);
  if (error) throw IoError(system_error_text("look at", path(), error.value()));
  return time;
}
std::uint32_t CheckpointFile::format_version() const
{
  return impl_->contents.metadata.format_version;
}
std::uint64_t CheckpointFile::step() const { return impl_->contents.certificate.step; }
std::uint64_t CheckpointFile::attempt() const { return impl_->contents.certificate.attempt; }
int CheckpointFile::ranks() const { return impl_->contents.manifest.ranks; }
int CheckpointFile::model_parallel() const { return impl_->contents.manifest.model_parallel; }
const ControlState& CheckpointFile::control() const { return impl_->contents.control; }
const std::string& CheckpointFile::configuration() const
{
  return impl_->contents.metadata.configuration;
}
const std::string& CheckpointFile::control_state() const
{
  return impl_->contents.metadata.control_state;
}
const std::string& CheckpointFile::certificate() const
{
  return impl_->contents.metadata.certificate;
}
std::uint64_t CheckpointFile::root() const { return impl_->contents.certificate.root; }
std::uint64_t CheckpointFile::state_digest() const
{
  return impl_->contents.certificate.state_digest;
}
const std::vector<CheckpointFile::Optimizer>& CheckpointFile::optimizers() const
{
  return impl_->optimizers;
}
const std::vector<CheckpointFile::Own>& CheckpointFile::own() const { return impl_->own; }
bool CheckpointFile::is_marked_verified() const { return has_verified_marker(path(), root()); }
bool CheckpointFile::is_pinned() const { return detail::is_pinned(path()); }
void CheckpointFile::mark_verified() const { leave_verified_marker(path(), root()); }

void CheckpointFile::read(std::string_view optimizer, std::string_view parameter,
                          std::string_view array, std::uint64_t first,
                          std::span<float> values) const
{
  const Contents& contents = impl_->contents;
  const auto& all = contents.manifest.optimizers;
  const std::size_t o = index_of(
      all, [](const ManifestEntry& e) { return std::string_view(e.name); }, optimizer, "optimizer",
      path());
  const std::size_t a = index_of(
      all[o].arrays, [](const std::string& n) { return std::string_view(n); }, array, "array",
      path());
  std::size_t p = 0;
  while (p < all[o].parameters.size() && all[o].parameters[p].name != parameter) ++p;
  if (p == all[o].parameters.size())
    throw InvalidArgument(
        fmt::format("checkpoint {} has no parameter '{}/{}' (see tutti checkpoint show); give a "
                    "name that is there",
                    path().string(), optimizer, parameter));
  std::uint64_t elements = 1;
  for (const std::size_t extent : all[o].parameters[p].shape) elements *= extent;
  if (first > elements || values.size() > elements - first)
    throw InvalidArgument(
        fmt::format("{}/{} has no elements [{}, {}) (it has {}); give a range "
                    "within it",
                    optimizer, parameter, first, first + values.size(), elements));

  BlockReader reader(impl_->file, contents, Verify::full);
  Cut cut;
  for (std::size_t at = 0; at < values.size();) {
    const std::size_t end = std::min(values.size(), at + blocks_at_a_time * block_elements);
    cut.clear();
    for (std::size_t e = at; e < end;) {
      const auto run = contents.layouts[o].locate(p, first + e);
      const std::size_t count = std::min(run.count, end - e);
      cut.add(run.element * sizeof(float), e * sizeof(float), count * sizeof(float));
      e += count;
    }
    try {
      reader.read(o, a, cut.blocks());
      cut.take(reader.buffer(), values.data());
    } catch (const CheckpointError& damage) {
      throw DamagedCheckpoint(damage.what());
    }
    at = end;
  }
}

std::vector<std::byte> CheckpointFile::read_own(std::string_view name) const
{
  const Manifest& manifest = impl_->contents.manifest;
  for (const OwnScalarEntry& scalar : manifest.own_scalars) {
    if (scalar.name != name) continue;
    std::vector<std::byte> value(bytes_of(scalar.type));
    std::memcpy(value.data(), &scalar.bits, value.size());
    return value;
  }
  const std::size_t i = index_of(
      manifest.own_arrays, [](const OwnArrayEntry& e) { return std::string_view(e.name); }, name,
      "own array or scalar", path());
  const OwnArrayEntry& entry = manifest.own_arrays[i];
  const ArrayPart all{std::vector<std::size_t>(entry.shape.size()), entry.shape};
  std::vector<std::byte> values(all.elements() * bytes_of(entry.type));
  BlockReader reader(impl_->file, impl_->contents, Verify::full);
  try {
    read_own_part(reader, entry, i, all, values.data());
  } catch (const CheckpointError& damage) {
    throw DamagedCheckpoint(damage.what());
  }
  return values;
}

std::uint64_t CheckpointFile::blocks() const { return blocks_in(impl_->contents); }

std::vector<std::string> CheckpointFile::find_damage(std::uint64_t begin, std::uint64_t end) const
{
  return damage_in(impl_->contents, impl_->file, begin, end);
}

std::vector<fs::path> checkpoint_files(const fs::path& directory)
{
  std::vector<fs::path> files;
  for (const std::string& name : files_by_step(directory)) files.push_back(directory / name);
  return files;
}

CheckpointVerification verify_checkpoint(const fs::path& path)
{
  const CheckpointFile file(path);
  std::vector<std::string> damage = file.find_damage(0, file.blocks());
  CheckpointVerification result{file.step(), file.root(), file.blocks(), damage.size(), {}};
  damage.resize(std::min(damage.size(), most_reasons));
  result.reasons = std::move(damage);
  mark(path, result);
  return result;
}

CheckpointVerification verify_checkpoint(const fs::path& path, MPI_Comm communicator)
{
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  const QuietHdf5 quiet;
  const Contents contents = [&] {
    try {
      return read_and_share(path, communicator);
    } catch (const CheckpointError& refusal) {
      throw DamagedCheckpoint(refusal.what());
    }
  }();

  CheckpointVerification result;
  result.step = contents.certificate.step;
  result.root = contents.certificate.root;
  result.blocks = blocks_in(contents);
  std::vector<std::string> mine;
  on_all_ranks(communicator, [&] {
    const auto part = [&](int r) {
      return result.blocks / static_cast<std::uint64_t>(size) * static_cast<std::uint64_t>(r) +
             std::min<std::uint64_t>(static_cast<std::uint64_t>(r),
                                     result.blocks % static_cast<std::uint64_t>(size));
    };
    if (part(rank) == part(rank + 1)) return;
    const PosixFile file = PosixFile::open_to_read(contents.path);
    mine = damage_in(contents, file, part(rank), part(rank + 1));
  });
  result.damaged = mine.size();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &result.damaged, 1, MPI_UINT64_T, MPI_SUM, communicator),
            "MPI_Allreduce of damaged blocks");
  mine.resize(std::min(mine.size(), most_reasons));
  result.reasons = gather_lines(communicator, mine, most_reasons);
  if (rank == 0) mark(contents.path, result);
  return result;
}

}  // namespace tutti
