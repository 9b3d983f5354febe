// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Due saves, and the ends they come to.
#include "saver.hpp"

#include <fmt/format.h>

#include "agreement.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

/// How long the end of a run waits for a save that is being written.
constexpr std::chrono::minutes patience{10};

}  // namespace

Saver::Saver(const TrainConfig& config, std::string configuration, const Topology& topology,
             Coordinator& coordinator, StopRequest& stop, Reporter& reporter)
    : config_(config),
      topology_(topology),
      coordinator_(coordinator),
      stop_(stop),
      reporter_(reporter),
      background_(config.checkpoint_async == "on"),
      go_on_(config.on_checkpoint_error == "continue"),
      writer_(
          topology, config.checkpoint_dir,
          {.configuration = std::move(configuration),
           .io = config.checkpoint_io == "skeleton" ? CheckpointIo::skeleton : CheckpointIo::mpiio,
           .keep = config.checkpoint_keep,
           .reached = [this](Phase phase) {
             coordinator_.reach_in_save(phase, boundary_step_, boundary_attempt_);
           }})
{
  if (enabled() && background_ && !CheckpointWriter::has_threads()) {
    background_ = false;
    reporter_.note(
        "checkpoints are not written in the background (MPI was started without "
        "threads)");
  }
}

void Saver::after_attempt(const Outcome& outcome)
{
  if (!enabled()) return;
  if (outcome.save == SaveState::done || outcome.save == SaveState::failed)
    end_background_save([&] { return writer_.finish(); });
  if (!outcome.committed()) return;
  due_ = is_due() || due_;
  if (due_ && !writer_.in_flight()) save(background_);
}

/// The same on all ranks. Wall clock: rank 0's counts, and only then do the ranks talk.
bool Saver::is_due()
{
  const std::uint64_t step = coordinator_.control().step;
  if (config_.checkpoint_every > 0 && step % config_.checkpoint_every == 0) return true;
  if (config_.checkpoint_minutes <= 0) return false;
  int due = steady_clock::now() - last_begin_ >=
            duration<double, std::ratio<60>>(config_.checkpoint_minutes);
  check_mpi(MPI_Bcast(&due, 1, MPI_INT, 0, topology_.world()), "MPI_Bcast of the clock");
  return due != 0;
}

/// What a save throws is the same on all ranks already.
void Saver::guarded(const std::function<void()>& work)
{
  try {
    work();
    if (coordinator_.watchdog() != nullptr) coordinator_.watchdog()->leave();
  } catch (const MpiError&) {
    throw;
  } catch (const IoError& error) {
    if (coordinator_.watchdog() != nullptr) coordinator_.watchdog()->leave();
    if (!go_on_) throw Refusal(ExitCode::error, error.what());
    reporter_.warn(fmt::format("step {} is not saved: {}", boundary_step_, error.what()));
  } catch (const Error& error) {
    throw Refusal(exit_code_of(error), error.what());
  }
}

void Saver::note_saved(const std::string& path)
{
  coordinator_.note_checkpoint(path, boundary_step_);
  saved_attempt_ = boundary_attempt_;
  stop_.saved(duration<double>(steady_clock::now() - last_begin_).count());
}

void Saver::save(bool background)
{
  due_ = false;
  boundary_step_ = coordinator_.control().step;
  boundary_attempt_ = coordinator_.control().attempt;
  last_begin_ = steady_clock::now();
  guarded([&] {
    if (background) {
      writer_.start(coordinator_.boundary());
      coordinator_.track_save(writer_.id(), [this] { return writer_.report(); });
      begun_ = fmt::format(" (in the background; training stood still for {:.3f} s)",
                           duration<double>(steady_clock::now() - last_begin_).count());
      return;
    }
    const std::filesystem::path path = writer_.save(coordinator_.boundary());
    note_saved(path.string());
    reporter_.note(fmt::format("step {}: checkpoint {} ({:.3f} s)", boundary_step_, path.string(),
                               duration<double>(steady_clock::now() - last_begin_).count()));
  });
}

void Saver::end_background_save(const std::function<std::filesystem::path()>& end)
{
  guarded([&] {
    const std::filesystem::path path = end();
    note_saved(path.string());
    reporter_.note(fmt::format("step {}: checkpoint {}{}", boundary_step_, path.string(), begun_));
  });
}

bool Saver::finish(bool halted)
{
  if (!enabled()) return true;
  go_on_ = go_on_ || halted;  // the reason of the halt is what must be said
  if (writer_.in_flight()) {
    coordinator_.forget_save();
    end_background_save([&] { return *writer_.drain(patience); });
  }
  const std::uint64_t attempt = coordinator_.control().attempt;
  if (!halted && saved_attempt_ != attempt) save(false);
  return halted || saved_attempt_ == attempt;
}

}  // namespace tutti::apps
