// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Saves and restores of synthetic optimizer state beside plain files of the same bytes: pairs, the
// order turned around from pair to pair, so that both see the same disk.
#include "bench_checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "measure.hpp"
#include "run_log.hpp"
#include "tutti/checkpoint.hpp"
#include "tutti/digest.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"
#include "tutti/tutti.hpp"

namespace tutti::apps {
namespace {

namespace fs = std::filesystem;

/// One call moves so much.
constexpr std::size_t piece_bytes = std::size_t{64} << 20;

[[noreturn]] void fail(const char* verb, const fs::path& path)
{
  throw IoError(fmt::format("cannot {} {} ({}); check the file system", verb, path.string(),
                            std::generic_category().message(errno)));
}

/// A file by POSIX calls and nothing else.
class PlainFile {
 public:
  PlainFile(fs::path path, int flags) : path_(std::move(path))
  {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("open", path_);
  }
  ~PlainFile() { ::close(descriptor_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void write(std::uint64_t offset, const std::byte* from, std::size_t bytes) const
  {
    move("write", offset, bytes, [&](std::size_t done, std::size_t count, off_t at) {
      return ::pwrite(descriptor_, from + done, count, at);
    });
  }
  void read(std::uint64_t offset, std::byte* to, std::size_t bytes) const
  {
    move("read", offset, bytes, [&](std::size_t done, std::size_t count, off_t at) {
      return ::pread(descriptor_, to + done, count, at);
    });
  }
  void sync() const
  {
    if (::fsync(descriptor_) != 0) fail("sync", path_);
  }
  /// Takes the file out of the page cache; the share of it that stays there all the same.
  double drop() const
  {
    struct stat status = {};
    if (::fstat(descriptor_, &status) != 0) fail("look at", path_);
    if (const int error = ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); error != 0) {
      errno = error;
      fail("drop from the cache", path_);
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) fail("map", path_);
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> resident((size + page - 1) / page);
    const int result = ::mincore(mapped, size, resident.data());
    ::munmap(mapped, size);
    if (result != 0) fail("look at the cache of", path_);
    const auto there =
        std::count_if(resident.begin(), resident.end(), [](unsigned char p) { return p & 1; });
    return static_cast<double>(there) / static_cast<double>(resident.size());
  }
  /// Everything that anybody has written to this file system.
  void settle() const
  {
    if (::syncfs(descriptor_) != 0) fail("sync the file system of", path_);
  }

 private:
  template <class Call>
  void move(const char* verb, std::uint64_t offset, std::size_t bytes, Call call) const
  {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t moved =
          call(done, std::min(piece_bytes, bytes - done), static_cast<off_t>(offset + done));
      if (moved < 0 && errno == EINTR) continue;
      if (moved == 0) errno = EIO;
      if (moved <= 0) fail(verb, path_);
      done += static_cast<std::size_t>(moved);
    }
  }
  fs::path path_;
  int descriptor_ = -1;
};

/// A folder for this run alone; rank 0 makes and removes it.
class Folder {
 public:
  Folder(const fs::path& directory, MPI_Comm world)
  {
    check_mpi(MPI_Comm_rank(world, &rank_), "MPI_Comm_rank");
    std::string name = fs::absolute(directory / "tutti-bench-XXXXXX").string();
    collectively(world, [&] {
      if (rank_ == 0 && ::mkdtemp(name.data()) == nullptr) fail("make a folder in", directory);
    });
    check_mpi(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, world),
              "MPI_Bcast");
    path_ = name;
  }
  ~Folder()
  {
    std::error_code ignored;
    if (rank_ == 0) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  int rank_ = 0;
  fs::path path_;
};

/// One thing beside another: the seconds of both, pair by pair.
struct Pairs {
  std::vector<double> plain, ours;
  /// Of the speed of plain I/O; more is better.
  double ratio() const
  {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < plain.size(); ++i) ratios.push_back(plain[i] / ours[i]);
    return median(ratios);
  }
};

class Bench {
 public:
  explicit Bench(const CheckpointBenchConfig& config)
      : config_(config), topology_(world_), folder_(config.directory, world_)
  {
    collectively(world_, [&] {
      if (topology_.rank() == 0) require_writable(config.summary, "summary");
      device_ = make_host_device();
    });
    collectively(world_, [&] {
      ParameterSet parameters;
      parameters.add({.name = "flat", .shape = {config.elements}, .precision = Precision::fp32});
      adam_ =
          std::make_unique<ShardedAdam>(topology_, *device_, std::move(parameters), AdamOptions{});
    });
    coordinator_ = std::make_unique<Coordinator>(topology_, std::vector<Participant*>{adam_.get()},
                                                 CoordinatorOptions{});
    collectively(world_, [&] {
      adam_->initialize([&](std::size_t) { return std::vector<float>(config.elements); });
      fill();
    });
    std::uint64_t all = bytes_;
    check_mpi(MPI_Exscan(&bytes_, &first_, 1, MPI_UINT64_T, MPI_SUM, world_), "MPI_Exscan");
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_UINT64_T, MPI_SUM, world_), "MPI_Allreduce");
    all_bytes_ = all;
    if (topology_.rank() == 0) first_ = 0;
    plain_path_ = folder_.path() / "plain";
    CheckpointOptions options;
    options.io = config.io == "skeleton" ? CheckpointIo::skeleton : CheckpointIo::mpiio;
    writer_.emplace(topology_, folder_.path(), options);
  }

  void measure()
  {
    // The first pair finds cold caches, directories and buffers: it is not counted.
    for (std::uint64_t pair = 0; pair <= config_.repeats; ++pair) {
      const bool plain_first = pair % 2 == 0;
      const auto both = [&](Pairs& pairs, auto plain, auto ours) {
        double plain_seconds = plain_first ? plain() : 0;
        const double our_seconds = ours();
        if (!plain_first) plain_seconds = plain();
        if (pair == 0) return;
        pairs.plain.push_back(plain_seconds);
        pairs.ours.push_back(our_seconds);
      };
      both(
          saves_, [&] { return plain_write(); }, [&] { return save(); });
      both(
          cold_, [&] { return plain_read(true); }, [&] { return restore(true); });
      both(
          warm_, [&] { return plain_read(false); }, [&] { return restore(false); });
      both(
          stalls_, [&] { return copy(); }, [&] { return start_save(); });
    }
  }

  void report();

  void close()
  {
    coordinator_->close();
    adam_->close_buffers();
    topology_.close();
  }

 private:
  void fill()
  {
    const StateView state = adam_->state();
    const std::size_t count = state.plan->shard(topology_.rank()).size() * block_elements;
    for (std::size_t a = 0; a < state.arrays.size(); ++a) {
      parts_.push_back({reinterpret_cast<std::byte*>(state.arrays[a].data), count * sizeof(float)});
      bytes_ += parts_.back().size();
      // Padding, at the end, stays zero.
      const auto rank = static_cast<std::uint64_t>(topology_.rank());
      for (std::size_t i = 0; i + block_elements < count; ++i)
        state.arrays[a].data[i] = static_cast<float>(mix64(rank, i * 4 + a) >> 40) * 0x1p-24f;
    }
    target_.resize(parts_.empty() ? 0 : parts_[0].size());
    copied_.resize(bytes_);
  }

  /// Seconds until the last rank is done.
  template <class Work>
  double timed(Work work)
  {
    collectively(world_, [&] { PlainFile(folder_.path(), O_RDONLY | O_DIRECTORY).settle(); });
    return seconds_together(world_, [&] { collectively(world_, work); });
  }

  /// On rank 0, outside of what is timed.
  void remove(const fs::path& path)
  {
    collectively(world_, [&] {
      if (topology_.rank() == 0) fs::remove(path);
    });
  }

  double plain_write()
  {
    remove(plain_path_);
    return timed([&] {
      const PlainFile file(plain_path_, O_WRONLY | O_CREAT);
      std::uint64_t offset = first_;
      for (const std::span<std::byte> part : parts_) {
        file.write(offset, part.data(), part.size());
        offset += part.size();
      }
      file.sync();
    });
  }

  double save()
  {
    if (!checkpoint_.empty()) remove(checkpoint_);
    return timed([&] { checkpoint_ = writer_->save(coordinator_->boundary()); });
  }

  /// What a background save cannot do without: the shard, once through the memory.
  double copy()
  {
    return timed([&] {
      std::byte* to = copied_.data();
      for (const std::span<std::byte> part : parts_) {
        std::copy(part.begin(), part.end(), to);
        to += part.size();
      }
    });
  }

  /// How long a background save keeps the caller.
  double start_save()
  {
    remove(checkpoint_);
    const double seconds = timed([&] { writer_->start(coordinator_->boundary()); });
    collectively(world_, [&] { checkpoint_ = writer_->finish(); });
    return seconds;
  }

  void take_from_cache(const fs::path& path)
  {
    double left = 0;
    collectively(world_, [&] {
      if (topology_.rank() == 0) left = PlainFile(path, O_RDONLY).drop();
    });
    still_cached_ = std::max(still_cached_, over_ranks(left, MPI_MAX, world_));
  }

  double plain_read(bool cold)
  {
    if (cold) take_from_cache(plain_path_);
    return timed([&] {
      const PlainFile file(plain_path_, O_RDONLY);
      std::uint64_t offset = first_;
      for (const std::span<std::byte> part : parts_) {
        file.read(offset, target_.data(), part.size());
        offset += part.size();
      }
    });
  }

  double restore(bool cold)
  {
    if (cold) take_from_cache(checkpoint_);
    return timed([&] {
      Participant* const participants[] = {adam_.get()};
      restore_checkpoint(checkpoint_, topology_, participants);
    });
  }

  const CheckpointBenchConfig& config_;
  const MPI_Comm world_ = MPI_COMM_WORLD;
  Topology topology_;
  Folder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ShardedAdam> adam_;
  std::unique_ptr<Coordinator> coordinator_;
  std::optional<CheckpointWriter> writer_;
  std::vector<std::span<std::byte>> parts_;  ///< this rank's shard, array by array
  std::vector<std::byte> target_;            ///< of plain reads, array by array
  std::vector<std::byte> copied_;            ///< of memory copies
  std::uint64_t bytes_ = 0, first_ = 0, all_bytes_ = 0;
  fs::path plain_path_, checkpoint_;
  Pairs saves_, cold_, warm_, stalls_;
  double still_cached_ = 0;
};

void Bench::report()
{
  const double gigabytes = static_cast<double>(all_bytes_) / 1e9;
  const auto entry = [&](const Pairs& pairs) {
    const double plain = median(pairs.plain);
    const double ours = median(pairs.ours);
    return nlohmann::ordered_json{{"seconds", ours},
                                  {"gigabytes_per_second", gigabytes / ours},
                                  {"plain_seconds", plain},
                                  {"plain_gigabytes_per_second", gigabytes / plain},
                                  {"fraction_of_plain", pairs.ratio()}};
  };
  const double stall = median(stalls_.ours);
  const double copied = median(stalls_.plain);
  const nlohmann::ordered_json result = {
      {"elements", config_.elements},
      {"ranks", topology_.size()},
      {"bytes", all_bytes_},
      {"io", config_.io},
      {"repeats", config_.repeats},
      {"save", entry(saves_)},
      {"restore_cold", entry(cold_)},
      {"restore_warm", entry(warm_)},
      {"stall", {{"seconds", stall}, {"copy_seconds", copied}, {"of_a_copy", 1 / stalls_.ratio()}}},
      {"still_cached", still_cached_}};
  collectively(world_, [&] {
    if (topology_.rank() == 0 && !config_.summary.empty())
      write_text_file(config_.summary, result.dump(2) + "\n");
  });
  if (topology_.rank() != 0) return;
  fmt::print("{} parameters, {} ranks, {:.1f} MB of optimizer state, {} writes in {}\n",
             config_.elements, topology_.size(), gigabytes * 1e3, config_.io, config_.directory);
  const auto line = [&](const char* what, const char* plain, const nlohmann::ordered_json& e) {
    fmt::print("{:<26} {:8.3f} s {:6.2f} GB/s\n", plain, e["plain_seconds"].get<double>(),
               e["plain_gigabytes_per_second"].get<double>());
    fmt::print("{:<26} {:8.3f} s {:6.2f} GB/s   {:.2f} of plain\n", what,
               e["seconds"].get<double>(), e["gigabytes_per_second"].get<double>(),
               e["fraction_of_plain"].get<double>());
  };
  line("save", "write and fsync", result["save"]);
  line("verified restore", still_cached_ < 0.01 ? "read from disk" : "read, not all from disk",
       result["restore_cold"]);
  line("verified restore", "read from cache", result["restore_warm"]);
  fmt::print("{:<26} {:8.3f} s\n", "copy in memory", copied);
  fmt::print("{:<26} {:8.3f} s                {:.2f} of a copy\n", "stall of a background save",
             stall, 1 / stalls_.ratio());
  fmt::print("medians of {} pairs in turned order, until the last rank is done\n", config_.repeats);
  if (still_cached_ >= 0.01)
    fmt::print("up to {:.0f} % of a file stayed in the cache (this file system does not let go)\n",
               100 * still_cached_);
}

}  // namespace

void declare(OptionTable& table, CheckpointBenchConfig& c)
{
  const auto whole = [&](const char* name, std::uint64_t& target, double minimum, double maximum,
                         const char* help) {
    table.add({.name = name,
               .argument = "N",
               .target = &target,
               .role = Role::launch,
               .help = help,
               .minimum = minimum,
               .maximum = maximum});
  };
  whole("elements", c.elements, 1, 1e11, "parameters, 12 bytes of state each");
  whole("repeats", c.repeats, 1, 1e4, "measured pairs");
  table.add({.name = "directory",
             .argument = "DIR",
             .target = &c.directory,
             .role = Role::launch,
             .help = "where the files are made; they are removed again"});
  table.add({.name = "io",
             .argument = "mpiio|skeleton",
             .target = &c.io,
             .role = Role::launch,
             .help = "how blocks reach the file: by MPI-IO, or by pwrite",
             .choices = {"mpiio", "skeleton"}});
  table.add({.name = "summary",
             .argument = "FILE.json",
             .target = &c.summary,
             .role = Role::local,
             .help = "the result as JSON"});
}

ExitCode bench_checkpoint(const CheckpointBenchConfig& config)
{
  Bench bench(config);
  bench.measure();
  bench.report();
  bench.close();
  return ExitCode::ok;
}

}  // namespace tutti::apps
