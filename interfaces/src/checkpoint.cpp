// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// tutti_checkpoint_*. Whether a rank may save or restore is voted on first: a window that only some
// ranks have opened would otherwise leave the others waiting.
#include "tutti/checkpoint.hpp"

#include "handles.hpp"
#include "status.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

using namespace tutti;
using namespace tutti::c;

tutti_status tutti_checkpoint_save(tutti_run run, const char* directory, const char** file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    Coordinator& coordinator = r.started("tutti_checkpoint_save");
    std::optional<CommittedBoundary> boundary;
    std::string path;
    detail::on_all_ranks(r.topology->topology.world(), [&] {
      path = text(directory, "the directory");
      boundary = coordinator.boundary();
    });
    r.read_caller_state();
    CheckpointOptions options;
    options.configuration = r.configuration;
    options.keep = r.checkpoint_keep;
    r.file = save_checkpoint(*boundary, path, options).string();
    coordinator.note_checkpoint(r.file, coordinator.control().step);  // for incidents
    if (file != nullptr) *file = r.file.c_str();
  });
}

tutti_status tutti_checkpoint_latest(tutti_run run, const char* directory, const char** file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    r.started("tutti_checkpoint_latest");
    const Topology& topology = r.topology->topology;
    std::string path;
    detail::on_all_ranks(topology.world(), [&] {
      path = text(directory, "the directory");
      given(file, "the output for the file");
    });
    const auto latest = latest_checkpoint(path, topology);
    *file = nullptr;
    if (!latest) return;
    r.file = latest->string();
    *file = r.file.c_str();
  });
}

namespace {

/// Collective: the path as given on this rank, once it is sure that all ranks may restore.
std::string may_restore(const tutti_run_s& run, const Coordinator& coordinator, const char* path,
                        const char* what)
{
  std::string own;
  detail::on_all_ranks(run.topology->topology.world(), [&] {
    own = text(path, what);
    coordinator.boundary();  // refuses what no window may be open for
  });
  return own;
}

RestoreOptions options_of(const tutti_run_s& run)
{
  RestoreOptions options;
  options.epoch_samples = run.options.epoch_samples;
  return options;
}

/// Collective: the run goes on from what was restored.
void take_over(tutti_run_s& run, Coordinator& coordinator, const RestoredControl& restored,
               const std::string& file)
{
  coordinator.resume(restored.control);
  coordinator.note_checkpoint(file, restored.step);
  run.outcome = {};
  detail::on_all_ranks(run.topology->topology.world(), [&] { run.write_bound_weights(); });
}

}  // namespace

tutti_status tutti_checkpoint_restore(tutti_run run, const char* file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    Coordinator& coordinator = r.started("tutti_checkpoint_restore");
    const std::string path = may_restore(r, coordinator, file, "the file");
    const std::vector<Participant*> participants = r.participants();
    take_over(r, coordinator,
              restore_checkpoint(path, r.topology->topology, participants, options_of(r)), path);
  });
}

tutti_status tutti_checkpoint_restore_latest(tutti_run run, const char* directory,
                                             const char** file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    Coordinator& coordinator = r.started("tutti_checkpoint_restore_latest");
    const std::string path = may_restore(r, coordinator, directory, "the directory");
    const std::vector<Participant*> participants = r.participants();
    const auto latest = restore_latest(path, r.topology->topology, participants, options_of(r));
    if (file != nullptr) *file = nullptr;
    if (!latest) return;
    r.file = latest->file.string();
    take_over(r, coordinator, latest->restored, r.file);
    if (file != nullptr) *file = r.file.c_str();
  });
}

tutti_status tutti_checkpoint_configuration(tutti_run run, const char* file, const char** content)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    given(content, "the output for the text");
    r.configuration_read = checkpoint_configuration(text(file, "the file"));
    *content = r.configuration_read.c_str();
  });
}
