// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared windows without their traps: creation that fails on one rank hangs the others, a page that
// cannot be reserved later is a SIGBUS, bases are not aligned and segments of no bytes are not
// safe.
#include "node_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t alignment = 64;  // a cache line
// What is left free for each rank: MPI's own transports keep files in the same place (4 MiB a rank
// in Open MPI) whose pages are touched late, and a lack of them is a SIGBUS inside MPI.
constexpr std::size_t transport_bytes = std::size_t{4} << 20;

std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t round_up(std::size_t value, std::size_t unit)
{
  return (value + unit - 1) / unit * unit;
}

// Reserves the pages now. False if there is no memory for them; where the kernel cannot say so
// (before Linux 5.14), the pages are touched and a lack shows as SIGBUS.
bool reserve_pages(std::byte* begin, std::size_t bytes)
{
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  const std::uintptr_t page = page_size();
  const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const std::uintptr_t to = round_up(reinterpret_cast<std::uintptr_t>(begin) + bytes, page);
  if (madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE) != 0 &&
      (errno == EFAULT || errno == ENOMEM)) {
    return false;
  }
  std::memset(begin, 0, bytes);
  return true;
}

}  // namespace

std::string readable_bytes(std::size_t bytes)
{
  const char* const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  int i = 0;
  for (; value >= 1024 && i < 5; ++i) value /= 1024;
  return fmt::format("{:.1f} {}", value, unit[i]);
}

AlignedBytes allocate_aligned(std::size_t bytes, Device* device) noexcept
{
  if (device == nullptr) {
    AlignedBytes memory(
        static_cast<std::byte*>(std::aligned_alloc(page_size(), whole_pages(bytes))));
    if (memory) std::memset(memory.get(), 0, bytes);
    return memory;
  }
  try {
    return AlignedBytes(static_cast<std::byte*>(device->allocate(std::max<std::size_t>(bytes, 1))),
                        Free{device});
  } catch (const std::exception&) {
    return {};
  }
}

std::size_t whole_pages(std::size_t bytes)
{
  return round_up(std::max<std::size_t>(bytes, 1), page_size());
}

NodeMemory::NodeMemory(const Topology& topology, std::size_t shared_bytes,
                       std::size_t private_bytes, std::size_t limit, Device* place,
                       std::string why_private)
    : topology_(topology)
{
  const bool together = topology.domains() < topology.size();
  std::string why_not = !why_private.empty()        ? std::move(why_private)
                        : !topology.shared_memory() ? "sharing of memory is off"
                        : !together                 ? "no two ranks share memory"
                                                    : "";
  if (why_not.empty()) why_not = first_text(topology.world(), lack_of_space(shared_bytes, limit));
  shared_ = why_not.empty();
  if (shared_ && topology.domain_of(topology.rank()).size() > 1) create_window(shared_bytes);

  if (shared_) {
    const bool reserved =
        window_ == MPI_WIN_NULL || reserve_pages(segment(topology.rank()), shared_bytes);
    why_not = first_text(
        topology.world(),
        reserved ? ""
                 : fmt::format("rank {}: the {} of its shared segment could not be reserved",
                               topology.rank(), readable_bytes(shared_bytes)));
    if (!why_not.empty()) {
      free_window();
      shared_ = false;
    }
  }

  if (window_ == MPI_WIN_NULL) {
    const std::size_t bytes = shared_ ? shared_bytes : private_bytes;
    private_ = allocate_aligned(bytes, place);
    private_bytes_ = whole_pages(bytes);
    segments_.assign(1, private_.get());
  }
  const std::string failure = first_text(
      topology.world(),
      window_ != MPI_WIN_NULL || private_
          ? ""
          : fmt::format(
                "rank {}: cannot allocate {} for gradients and weights (out of memory); use "
                "more ranks, or a smaller model",
                topology.rank(), readable_bytes(private_bytes)));
  if (!failure.empty()) {
    free_window();
    throw DeviceError(failure);
  }
  const int ranks = topology.size();
  if (ranks == 1) {
    description_ = "one rank, nothing to exchange";
  } else if (!shared_) {
    description_ = fmt::format("messages ({} ranks; {})", ranks, why_not);
  } else if (topology.domains() == 1) {
    description_ = fmt::format("shared memory ({} ranks)", ranks);
  } else {
    description_ = fmt::format("shared memory and messages ({} ranks in {} memory domains)", ranks,
                               topology.domains());
  }
}

// What is said if this rank's domain cannot have its window; agreed on before anybody creates one.
std::string NodeMemory::lack_of_space(std::size_t bytes, std::size_t limit) const
{
  const std::size_t ranks = topology_.domain_of(topology_.rank()).size();
  const unsigned long long mine = ranks > 1 ? round_up(bytes + alignment, page_size()) : 0;
  unsigned long long all = 0;
  check_mpi(MPI_Allreduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, topology_.domain()),
            "MPI_Allreduce");
  if (mine == 0) return {};

  // Where MPI libraries on Linux keep the file behind a shared window.
  const char* const place = "/dev/shm";
  struct statvfs space {};
  if (statvfs(place, &space) != 0) {
    return fmt::format("rank {}: {} cannot be used ({})", topology_.rank(), place,
                       std::strerror(errno));
  }
  const std::size_t free = space.f_bavail * static_cast<std::size_t>(space.f_frsize);
  // MPI's own test wants 5 % more than it asks for.
  const std::size_t needed = all + all / 16 + ranks * transport_bytes;
  if (needed > free) {
    return fmt::format("rank {}: {} are needed in {} and {} are free", topology_.rank(),
                       readable_bytes(needed), place, readable_bytes(free));
  }
  if (all > limit) {
    return fmt::format("rank {}: {} of shared memory are needed and the limit is {}",
                       topology_.rank(), readable_bytes(all), readable_bytes(limit));
  }
  return {};
}

void NodeMemory::create_window(std::size_t bytes)
{
  MPI_Info info = MPI_INFO_NULL;
  check_mpi(MPI_Info_create(&info), "MPI_Info_create");
  // Each rank's pages on its own side of the machine, rather than one run cut anywhere.
  check_mpi(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  const std::size_t size = round_up(bytes + alignment, page_size());
  void* base = nullptr;
  check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(size), 1, info, topology_.domain(), &base,
                                    &window_),
            "MPI_Win_allocate_shared");
  check_mpi(MPI_Info_free(&info), "MPI_Info_free");
  check_mpi(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");

  // The owner chooses where its segment begins: another process may see the base at another
  // distance from an aligned address.
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(base);
  const unsigned long long shift = round_up(address, alignment) - address;
  const std::vector<int>& domain = topology_.domain_of(topology_.rank());
  std::vector<unsigned long long> shifts(domain.size());
  check_mpi(MPI_Allgather(&shift, 1, MPI_UNSIGNED_LONG_LONG, shifts.data(), 1,
                          MPI_UNSIGNED_LONG_LONG, topology_.domain()),
            "MPI_Allgather");
  segments_.clear();
  for (std::size_t i = 0; i < domain.size(); ++i) {
    MPI_Aint peer_size = 0;
    int unit = 0;
    void* peer_base = nullptr;
    check_mpi(MPI_Win_shared_query(window_, static_cast<int>(i), &peer_size, &unit, &peer_base),
              "MPI_Win_shared_query");
    segments_.push_back(static_cast<std::byte*>(peer_base) + shifts[i]);
    mapped_.emplace_back(static_cast<std::byte*>(peer_base), static_cast<std::size_t>(peer_size));
  }
  // One passive epoch for the life of the window, in which MPI_Win_sync is the fence.
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
}

void NodeMemory::free_window()
{
  if (window_ == MPI_WIN_NULL) return;
  check_mpi(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
  check_mpi(MPI_Win_free(&window_), "MPI_Win_free");
  segments_.clear();
  mapped_.clear();
}

std::byte* NodeMemory::segment(int rank) const
{
  if (window_ == MPI_WIN_NULL) return segments_[0];
  const std::vector<int>& domain = topology_.domain_of(topology_.rank());
  const auto place = std::lower_bound(domain.begin(), domain.end(), rank);
  return segments_[static_cast<std::size_t>(place - domain.begin())];
}

std::vector<std::span<std::byte>> NodeMemory::pages() const
{
  if (window_ == MPI_WIN_NULL && private_.get_deleter().device != nullptr) return {};
  if (window_ == MPI_WIN_NULL) return {{private_.get(), private_bytes_}};
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  for (const std::span<std::byte> segment : mapped_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(segment.data());
    ranges.emplace_back(begin / page_size() * page_size(),
                        round_up(begin + segment.size(), page_size()));
  }
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::span<std::byte>> merged;
  for (std::size_t i = 0; i < ranges.size();) {
    const std::uintptr_t begin = ranges[i].first;
    std::uintptr_t end = ranges[i].second;
    while (++i < ranges.size() && ranges[i].first <= end) end = std::max(end, ranges[i].second);
    merged.emplace_back(reinterpret_cast<std::byte*>(begin), end - begin);
  }
  return merged;
}

void NodeMemory::barrier() const
{
  if (window_ != MPI_WIN_NULL) check_mpi(MPI_Barrier(topology_.domain()), "MPI_Barrier");
}

void NodeMemory::fence() const
{
  if (window_ != MPI_WIN_NULL) check_mpi(MPI_Win_sync(window_), "MPI_Win_sync");
}

void NodeMemory::close()
{
  free_window();
  private_.reset();
  segments_.clear();
}

}  // namespace tutti::detail
