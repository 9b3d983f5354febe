// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The board is a small POSIX segment of its own, so that a thread may read it at any time, whatever
// MPI is doing. Each rank writes its own line, all threads of the node read all lines, and judge by
// their own clocks when a line last changed.
#include "tutti/watchdog.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t no_phase = ~0u;
/// After a request to end, how long the dead are looked for: the launcher's own order to end comes
/// right after a death, and its SIGKILL a second or more later.
constexpr std::chrono::milliseconds search_for_dead{400};
constexpr std::uint64_t stop_bit = 1, terminate_bit = std::uint64_t{1} << 32;

double seconds_between(Clock::time_point from, Clock::time_point to)
{
  return std::chrono::duration<double>(to - from).count();
}

/// One rank's line of the board. Lock-free, so it works between processes.
struct alignas(64) Line {
  std::atomic<std::uint64_t> counter{0};  // moves with every sign of life
  std::atomic<std::uint64_t> step{0}, attempt{0};
  std::atomic<std::uint32_t> micro{~0u}, phase{no_phase};
  std::atomic<std::uint32_t> waiting{0}, left{0}, death_told{0};
  std::atomic<std::int32_t> rank{0};
  std::atomic<std::int64_t> pid{0};
};
struct alignas(64) Head {
  std::atomic<std::uint32_t> stall_told{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::string place_of(const Line& line)
{
  const std::uint32_t phase = line.phase.load(std::memory_order_relaxed);
  if (phase == no_phase) return "outside of a step";
  std::string text = fmt::format(
      "in phase {} of step {} (attempt {}", name_of(static_cast<Phase>(phase)),
      line.step.load(std::memory_order_relaxed), line.attempt.load(std::memory_order_relaxed));
  if (const auto micro = line.micro.load(std::memory_order_relaxed); micro != ~0u)
    text += fmt::format(", micro-batch {}", micro);
  return text + ")";
}

/// A handle that becomes readable when the process ends; -1 where the kernel has none.
int open_process(long pid)
{
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
#else
  (void)pid;
  return -1;
#endif
}

/// By its handle where there is one.
bool has_ended(int handle, long pid)
{
  pollfd look{handle, POLLIN, 0};
  return handle >= 0 ? ::poll(&look, 1, 0) == 1
                     : ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
}

}  // namespace

struct Watchdog::State {
  WatchdogOptions options;
  std::string description;
  void* memory = MAP_FAILED;
  std::size_t bytes = 0;
  Head* head = nullptr;
  Line* lines = nullptr;  // of the node's ranks, ascending
  int place = 0, count = 1;
  bool other_nodes = false;
  std::thread::id owner = std::this_thread::get_id();
  int wake = -1;
  std::vector<int> processes;  // handles by line; -1: not watched
  int launcher = -1;           // its handle; -1: none, or not there
  bool launcher_told = false;
  std::atomic<bool> lost{false};
  std::thread thread;

  std::string map_board(MPI_Comm node);
  void watch();
  void look_for_dead();
  void look_for_launcher();
  void look_for_stalled(const std::vector<Clock::time_point>& moved, Clock::time_point now);
  void tell(const LossReport& report) const
  {
    if (options.on_lost) options.on_lost(report);
  }
  Line* own() const
  {
    return lines != nullptr && std::this_thread::get_id() == owner ? &lines[place] : nullptr;
  }
};

/// Collective over `node`: the board in this process, or why it is not there.
std::string Watchdog::State::map_board(MPI_Comm node)
{
  std::array<char, 64> name{};
  std::string reason;
  bytes = sizeof(Head) + sizeof(Line) * static_cast<std::size_t>(count);
  int file = -1;
  if (place == 0) {
    const auto ticks = Clock::now().time_since_epoch().count();
    fmt::format_to_n(name.data(), name.size() - 1, "/tutti-board-{}-{}", ::getpid(), ticks);
    file = ::shm_open(name.data(), O_CREAT | O_EXCL | O_RDWR, 0600);
    // Reserved now: a page that is not there later would be a SIGBUS.
    int error = file < 0 ? errno : 0;
    if (error == 0) error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
    if (error != 0) {
      reason = fmt::format("its board cannot be made: {}", std::strerror(error));
      if (file >= 0) ::shm_unlink(name.data());
      name[0] = '\0';
    }
  }
  check_mpi(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, node), "MPI_Bcast");
  if (name[0] != '\0' && place != 0) file = ::shm_open(name.data(), O_RDWR, 0600);
  if (file >= 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
  }
  if (memory == MAP_FAILED && reason.empty())
    reason = fmt::format("its board cannot be seen: {}", std::strerror(errno));
  check_mpi(MPI_Barrier(node), "MPI_Barrier");
  if (place == 0 && name[0] != '\0') ::shm_unlink(name.data());
  return reason;
}

Watchdog::Watchdog(const Topology& topology, WatchdogOptions options)
    : state_(std::make_unique<State>())
{
  State& s = *state_;
  s.options = std::move(options);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(topology.world(), MPI_COMM_TYPE_SHARED, topology.rank(),
                                MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(node, &s.place), "MPI_Comm_rank");
  if (s.options.node_ranks > 0) {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(node, s.place / s.options.node_ranks, s.place, &part),
              "MPI_Comm_split");
    check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
    node = part;
    check_mpi(MPI_Comm_rank(node, &s.place), "MPI_Comm_rank");
  }
  check_mpi(MPI_Comm_size(node, &s.count), "MPI_Comm_size");
  s.other_nodes = s.count < topology.size();

  int threads = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&threads), "MPI_Query_thread");
  std::string reason = s.map_board(node);
  if (reason.empty() && threads < MPI_THREAD_FUNNELED) reason = "MPI was started without threads";
  if (reason.empty()) {
    s.head = static_cast<Head*>(s.memory);
    auto* const lines = reinterpret_cast<Line*>(static_cast<std::byte*>(s.memory) + sizeof(Head));
    if (s.place == 0) new (s.head) Head;
    Line* const mine = new (lines + s.place) Line;
    mine->rank = topology.rank();
    mine->pid = ::getpid();
    s.lines = lines;
    s.wake = ::eventfd(0, EFD_CLOEXEC);
    if (s.wake < 0) reason = fmt::format("no event handle: {}", std::strerror(errno));
  }
  // Also the barrier after which all lines are written.
  reason =
      first_text(topology.world(),
                 reason.empty() ? reason : fmt::format("rank {}: {}", topology.rank(), reason));
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  if (!reason.empty()) {
    s.lines = nullptr;
    s.description = fmt::format("no watchdog ({})", reason);
    return;
  }
  for (int i = 0; i < s.count; ++i)
    s.processes.push_back(i == s.place ? -1 : open_process(s.lines[i].pid.load()));
  if (s.options.launcher > 0) s.launcher = open_process(s.options.launcher);
  s.description = fmt::format("watchdog of {} s", s.options.seconds);

  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    s.thread = std::thread([&s] { s.watch(); });
  } catch (const std::system_error& error) {  // this rank watches nobody, and is watched
    s.description = fmt::format("no watchdog here (no thread: {})", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog()
{
  State& s = *state_;
  if (s.lines != nullptr) s.lines[s.place].left = 1;
  if (s.thread.joinable()) {
    const std::uint64_t word = stop_bit;
    static_cast<void>(!::write(s.wake, &word, sizeof word));
    s.thread.join();
  }
  for (const int process : s.processes)
    if (process >= 0) ::close(process);
  if (s.launcher >= 0) ::close(s.launcher);
  if (s.wake >= 0) ::close(s.wake);
  if (s.memory != MAP_FAILED) ::munmap(s.memory, s.bytes);
}

bool Watchdog::running() const { return state_->thread.joinable(); }
const std::string& Watchdog::description() const { return state_->description; }
bool Watchdog::peer_lost() const noexcept { return state_->lost; }

// --- this rank's line ----------------------------------------------------------------------------

void Watchdog::enter(Phase phase, std::uint64_t step, std::uint64_t attempt,
                     std::uint32_t micro) noexcept
{
  Line* const line = state_->own();
  if (line == nullptr) return;
  line->waiting.store(0, std::memory_order_relaxed);
  line->phase.store(static_cast<std::uint32_t>(phase), std::memory_order_relaxed);
  line->step.store(step, std::memory_order_relaxed);
  line->attempt.store(attempt, std::memory_order_relaxed);
  line->micro.store(micro, std::memory_order_relaxed);
  line->counter.fetch_add(1, std::memory_order_release);
}

void Watchdog::wait() noexcept
{
  Line* const line = state_->own();
  if (line == nullptr) return;
  line->waiting.store(1, std::memory_order_relaxed);
  line->counter.fetch_add(1, std::memory_order_release);
}

void Watchdog::resume() noexcept
{
  Line* const line = state_->own();
  if (line == nullptr) return;
  line->waiting.store(0, std::memory_order_relaxed);
  line->counter.fetch_add(1, std::memory_order_release);
}

void Watchdog::leave() noexcept
{
  Line* const line = state_->own();
  if (line == nullptr) return;
  line->waiting.store(0, std::memory_order_relaxed);
  line->phase.store(no_phase, std::memory_order_relaxed);
  line->counter.fetch_add(1, std::memory_order_release);
}

void Watchdog::progress() noexcept
{
  if (Line* const line = state_->own()) line->counter.fetch_add(1, std::memory_order_release);
}

void Watchdog::terminating() noexcept
{
  const int error = errno;
  const std::uint64_t word = terminate_bit;
  if (state_->wake >= 0) static_cast<void>(!::write(state_->wake, &word, sizeof word));
  errno = error;
}

// --- the thread ----------------------------------------------------------------------------------

void Watchdog::State::watch()
{
  const double interval = std::clamp(options.seconds / 10, 0.01, 1.0);
  const auto others = static_cast<std::size_t>(count);
  std::vector<std::uint64_t> seen(others, 0);
  std::vector<Clock::time_point> moved(others, Clock::now());
  Clock::time_point last = Clock::now(), terminate_at = Clock::time_point::max();
  while (true) {
    std::vector<pollfd> handles = {{wake, POLLIN, 0}};
    for (int i = 0; i < count; ++i)  // a line whose process is known to be dead says no more
      if (processes[i] >= 0 && lines[i].death_told.load() == 0 && lines[i].left.load() == 0)
        handles.push_back({processes[i], POLLIN, 0});
    if (launcher >= 0 && !launcher_told) handles.push_back({launcher, POLLIN, 0});
    ::poll(handles.data(), handles.size(), static_cast<int>(interval * 1000) + 1);
    const Clock::time_point now = Clock::now();
    if (handles[0].revents != 0) {
      std::uint64_t word = 0;
      if (::read(wake, &word, sizeof word) != sizeof word) word = stop_bit;
      if ((word & (terminate_bit - 1)) != 0) return;
      if (terminate_at == Clock::time_point::max()) terminate_at = now + search_for_dead;
    }
    look_for_dead();
    look_for_launcher();
    if (lost || now >= terminate_at) {
      if (terminate_at != Clock::time_point::max()) {
        terminate_at = Clock::time_point::max();
        if (options.on_terminated) options.on_terminated();
      }
      if (lost) continue;  // whoever stands still now waits for the dead
    }
    // Whoever stood still because all of this machine or process did has not stood still.
    const bool was_stopped = seconds_between(last, now) > 3 * interval + 1;
    last = now;
    for (std::size_t i = 0; i < others; ++i) {
      const std::uint64_t counter = lines[i].counter.load(std::memory_order_acquire);
      if (counter != seen[i] || was_stopped) moved[i] = now;
      seen[i] = counter;
    }
    look_for_stalled(moved, now);
  }
}

void Watchdog::State::look_for_dead()
{
  for (int i = 0; i < count; ++i) {
    Line& line = lines[i];
    if (i == place || line.left.load() != 0) continue;
    const long pid = static_cast<long>(line.pid.load());
    // It may have left between the two looks, and only then ended.
    if (!has_ended(processes[i], pid) || line.left.load() != 0) continue;
    lost = true;
    if (line.death_told.exchange(1) != 0) continue;
    LossReport report;
    report.kind = LossReport::Kind::dead;
    report.rank = line.rank.load();
    report.pid = pid;
    report.place = place_of(line);
    report.message =
        fmt::format("rank {} has died (process {}, last seen {}); resume from the last checkpoint",
                    report.rank, pid, report.place);
    tell(report);
  }
}

void Watchdog::State::look_for_launcher()
{
  if (options.launcher <= 0 || launcher_told || !has_ended(launcher, options.launcher)) return;
  launcher_told = true;
  LossReport report;
  report.kind = LossReport::Kind::orphaned;
  report.rank = lines[place].rank.load();
  report.pid = options.launcher;
  report.place = place_of(lines[place]);
  report.message = fmt::format(
      "the launcher has ended (process {}, this rank is {}); resume from the last checkpoint",
      report.pid, report.place);
  tell(report);
}

void Watchdog::State::look_for_stalled(const std::vector<Clock::time_point>& moved,
                                       Clock::time_point now)
{
  const auto still = [&](int i) {
    return seconds_between(moved[static_cast<std::size_t>(i)], now);
  };
  bool somebody_waits = false, all_wait = true, nobody_waits = true;
  std::vector<int> missing;
  double shortest = 1e300;
  for (int i = 0; i < count; ++i) {
    if (lines[i].left.load() != 0) return;  // the run ends
    const bool waits = lines[i].waiting.load(std::memory_order_relaxed) != 0;
    nobody_waits = nobody_waits && !waits;
    somebody_waits = somebody_waits || (waits && still(i) >= options.seconds);
    all_wait = all_wait && waits && still(i) >= options.seconds;
    if (!waits && still(i) >= options.seconds) missing.push_back(i);
    shortest = std::min(shortest, still(i));
  }
  // Who waits on other nodes cannot be seen from here.
  const bool nobody_moves_here = other_nodes && nobody_waits && shortest >= 2 * options.seconds;
  const bool stalled = !missing.empty() && (somebody_waits || nobody_moves_here);
  if (!stalled && !all_wait) return;
  if (head->stall_told.exchange(1) != 0) return;
  LossReport report;
  if (stalled) {
    const Line& line = lines[missing.front()];
    report.rank = line.rank.load();
    report.pid = static_cast<long>(line.pid.load());
    report.place = place_of(line);
    report.seconds = still(missing.front());
    std::vector<int> more;
    for (std::size_t m = 1; m < missing.size(); ++m) more.push_back(lines[missing[m]].rank.load());
    report.message = fmt::format(
        "rank {} hangs (process {}, last seen {}, no progress for {:.1f} s{}); see what it does "
        "there, then resume from the last checkpoint",
        report.rank, report.pid, report.place, report.seconds,
        more.empty() ? "" : fmt::format("; so do ranks {}", fmt::join(more, ", ")));
  } else {
    report.kind = LossReport::Kind::elsewhere;
    report.rank = lines[place].rank.load();
    report.place = place_of(lines[place]);
    report.seconds = shortest;
    report.message = fmt::format(
        "all {} ranks of this node have arrived {} and wait ({:.1f} s); {}", count, report.place,
        shortest,
        other_nodes ? "the missing rank is on another node" : "what they wait for is not a rank");
  }
  tell(report);
}

void tell_and_end(int speaker, const LossReport& report)
{
  const std::string line = fmt::format("tutti: [rank {}] {}\n", speaker, report.message);
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  if (report.kind == LossReport::Kind::stalled || report.kind == LossReport::Kind::orphaned)
    ::_exit(4);
}

}  // namespace tutti
