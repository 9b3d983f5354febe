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

tutti_status tutti_checkpoint_restore(tutti_run run, const char* file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    Coordinator& coordinator = r.started("tutti_checkpoint_restore");
    const Topology& topology = r.topology->topology;
    std::string path;
    detail::on_all_ranks(topology.world(), [&] {
      path = text(file, "the file");
      coordinator.boundary();  // refuses what no window may be open for
    });
    RestoreOptions options;
    options.epoch_samples = r.options.epoch_samples;
    const std::vector<Participant*> participants = r.participants();
    const RestoredControl restored = restore_checkpoint(path, topology, participants, options);
    coordinator.resume(restored.control);
    coordinator.note_checkpoint(path, restored.step);
    r.outcome = {};
    detail::on_all_ranks(topology.world(), [&] { r.write_bound_weights(); });
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
