// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The order of a save's steps, once for a save at once and once for one in the background, and
// what is kept in between.
#include <fmt/format.h>

#include <utility>

#include "background_write.hpp"
#include "save.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

namespace tutti {

using namespace detail;
namespace fs = std::filesystem;

namespace {

/// A thread that was told to stop does so after at most 64 MiB, unless it hangs.
constexpr std::chrono::seconds a_thread_ends_within{5};

}  // namespace

class CheckpointWriter::Implementation {
 public:
  Implementation(const Topology& topology, fs::path directory, CheckpointOptions options)
      : topology_(topology), directory_(std::move(directory)), options_(std::move(options))
  {
  }

  ~Implementation()
  {
    if (!save_) return;
    save_->payload()->give_up();
    write_->leave(a_thread_ends_within);
    save_->discard();
  }

  fs::path save(const CommittedBoundary& boundary)
  {
    require_none_in_flight();
    const QuietHdf5 quiet;
    Save save(boundary, directory_, options_);
    return or_discard(save, [&] {
      save.prepare();
      save.judge();
      save.create();
      save.write();
      return save.publish(removal_, false);
    });
  }

  void start(const CommittedBoundary& boundary)
  {
    require_none_in_flight();
    const QuietHdf5 quiet;
    write_.reset();
    auto save = std::make_unique<Save>(boundary, directory_, options_);
    try {
      save->prepare();
      save->take_snapshot(before_.get());
      save->create();
      on_all_ranks(topology_.world(), [&] {
        write_ = std::make_unique<BackgroundWrite>(save->payload(), has_threads());
      });
    } catch (...) {
      save->payload()->give_up();
      if (write_) write_->leave(a_thread_ends_within);
      write_.reset();
      save->discard();
      throw;
    }
    before_ = save->payload();
    save_ = std::move(save);
    ++id_;
  }

  fs::path finish()
  {
    if (!save_)
      throw InvalidArgument("there is no save to finish (none is in flight); start one before");
    const QuietHdf5 quiet;
    const std::unique_ptr<Save> save = std::move(save_);
    return or_discard(*save, [&] {
      on_all_ranks(topology_.world(), [&] { write_->join(); });
      return save->publish(removal_, has_threads());
    });
  }

  std::optional<fs::path> drain(std::chrono::duration<double> timeout)
  {
    if (!save_) return std::nullopt;
    using std::chrono::steady_clock;
    const bool ended = write_->ended_by(
        steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(timeout));
    int all_ended = ended ? 1 : 0;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all_ended, 1, MPI_INT, MPI_MIN, topology_.world()),
              "MPI_Allreduce of the save's end");
    if (all_ended == 1) {
      const fs::path path = finish();
      on_rank_zero(topology_.world(), [&] {
        if (removal_.valid()) removal_.get();
      });
      return path;
    }

    const std::unique_ptr<Save> save = std::move(save_);
    save->payload()->give_up();
    write_->leave(std::chrono::seconds(0));
    write_.reset();
    before_.reset();  // the thread may still read it
    or_discard(*save, [&] {
      on_all_ranks(topology_.world(), [&] {
        if (!ended)
          throw IoError(fmt::format(
              "the background save of step {} was given up (not written after another {} s); the "
              "previous checkpoint is untouched, check the file system of {}",
              save->step(), timeout.count(), directory_.string()));
      });
    });
    return std::nullopt;
  }

  bool in_flight() const { return save_ != nullptr; }
  std::uint64_t id() const { return save_ ? id_ : 0; }
  SaveReport report() const { return save_ ? write_->report() : SaveReport{}; }

 private:
  void require_none_in_flight() const
  {
    if (save_)
      throw InvalidArgument(
          "a save is refused (another one is in flight); finish or drain that one first");
  }

  template <class Work>
  static auto or_discard(Save& save, const Work& work) -> decltype(work())
  {
    try {
      return work();
    } catch (...) {
      save.discard();
      throw;
    }
  }

  const Topology& topology_;
  fs::path directory_;
  CheckpointOptions options_;
  std::unique_ptr<Save> save_;  ///< in flight
  std::unique_ptr<BackgroundWrite> write_;
  std::shared_ptr<Payload> before_;  ///< its memory serves the next snapshot
  std::future<void> removal_;        ///< rank 0: of older checkpoints, after a background save
  std::uint64_t id_ = 0;
};

CheckpointWriter::CheckpointWriter(const Topology& topology, fs::path directory,
                                   CheckpointOptions options)
    : implementation_(
          std::make_unique<Implementation>(topology, std::move(directory), std::move(options)))
{
}

CheckpointWriter::~CheckpointWriter() = default;

fs::path CheckpointWriter::save(const CommittedBoundary& boundary)
{
  return implementation_->save(boundary);
}

void CheckpointWriter::start(const CommittedBoundary& boundary)
{
  implementation_->start(boundary);
}

bool CheckpointWriter::has_threads()
{
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level >= MPI_THREAD_FUNNELED;
}

bool CheckpointWriter::in_flight() const noexcept { return implementation_->in_flight(); }
std::uint64_t CheckpointWriter::id() const noexcept { return implementation_->id(); }
SaveReport CheckpointWriter::report() const noexcept { return implementation_->report(); }
fs::path CheckpointWriter::finish() { return implementation_->finish(); }

std::optional<fs::path> CheckpointWriter::drain(std::chrono::duration<double> timeout)
{
  return implementation_->drain(timeout);
}

fs::path save_checkpoint(const CommittedBoundary& boundary, const fs::path& directory,
                         const CheckpointOptions& options)
{
  return CheckpointWriter(boundary.topology(), directory, options).save(boundary);
}

}  // namespace tutti
