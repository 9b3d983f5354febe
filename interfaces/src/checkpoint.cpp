// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// tutti_checkpoint_*. Whether a rank may save or restore is voted on first: a window that only some
// ranks have opened would otherwise leave the others waiting.
#include "tutti/checkpoint.hpp"

#include <fmt/format.h>

#include <vector>

#include "handles.hpp"
#include "status.hpp"
#include "tutti/mpi_check.hpp"
#include "vote.hpp"

using namespace tutti;
using namespace tutti::c;

// --- saving --------------------------------------------------------------------------------------

namespace {

void refuse_second_save(const tutti_run_s& run, const char* call)
{
  if (run.save_in_flight())
    throw InvalidArgument(std::string(call) +
                          " is refused (a save is in flight); call tutti_checkpoint_finish first");
}

/// A boundary and where it is to be saved, once it is sure that all ranks may.
struct Save {
  std::string directory;
  std::optional<CommittedBoundary> boundary;
};

/// Collective.
Save may_save(tutti_run_s& run, const char* directory, const char* call)
{
  Save save;
  Coordinator& coordinator = run.started(call);
  detail::on_all_ranks(run.topology->topology.world(), [&] {
    refuse_second_save(run, call);
    save.directory = text(directory, "the directory");
    save.boundary = coordinator.boundary();
  });
  run.read_caller_state();
  return save;
}

/// `step` and `attempt` of the boundary are in `run` as long as a save of its may run.
CheckpointOptions options_of_save(tutti_run_s& run)
{
  CheckpointOptions options;
  options.configuration = run.configuration;
  options.io = run.checkpoint_io;
  options.keep = run.checkpoint_keep;
  options.own = &run.own_arrays;
  options.reached = [&run](Phase phase) {
    run.coordinator->reach_in_save(phase, run.saved_step, run.saved_attempt);
  };
  return options;
}

void note_boundary(tutti_run_s& run)
{
  run.saved_step = run.coordinator->control().step;
  run.saved_attempt = run.coordinator->control().attempt;
}

/// The watchdog sees this rank on its own way again.
void leave_save(const tutti_run_s& run)
{
  if (Watchdog* const watchdog = run.coordinator->watchdog()) watchdog->leave();
}

}  // namespace

void tutti_run_s::finish_save()
{
  coordinator->forget_save();
  file = writer->finish().string();
  leave_save(*this);
  coordinator->note_checkpoint(file, saved_step);  // for incidents
}

tutti_status tutti_checkpoint_save(tutti_run run, const char* directory, const char** file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    const Save save = may_save(r, directory, "tutti_checkpoint_save");
    note_boundary(r);
    r.file = save_checkpoint(*save.boundary, save.directory, options_of_save(r)).string();
    leave_save(r);
    r.coordinator->note_checkpoint(r.file, r.saved_step);
    if (file != nullptr) *file = r.file.c_str();
  });
}

tutti_status tutti_checkpoint_start(tutti_run run, const char* directory)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    const Save save = may_save(r, directory, "tutti_checkpoint_start");
    note_boundary(r);
    // A writer keeps its copy of the state from save to save.
    detail::on_all_ranks(r.topology->topology.world(), [&] {
      if (r.writer && r.save_directory == save.directory) return;
      r.writer = std::make_unique<CheckpointWriter>(r.topology->topology, save.directory,
                                                    options_of_save(r));
      r.save_directory = save.directory;
    });
    r.writer->start(*save.boundary);
    leave_save(r);
    r.coordinator->track_save(r.writer->id(), [&writer = *r.writer] { return writer.report(); });
  });
}

tutti_status tutti_checkpoint_finish(tutti_run run, const char** file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    r.started("tutti_checkpoint_finish");
    detail::on_all_ranks(r.topology->topology.world(), [&] {
      if (r.window)
        throw InvalidArgument(
            "tutti_checkpoint_finish is refused (a window is open); call it after tutti_step");
    });
    if (file != nullptr) *file = nullptr;
    if (!r.save_in_flight()) return;
    r.finish_save();
    if (file != nullptr) *file = r.file.c_str();
  });
}

// --- the caller's own arrays ---------------------------------------------------------------------

namespace {

ElementType element_type(tutti_type type)
{
  switch (type) {
    case TUTTI_FP32:
      return ElementType::float32;
    case TUTTI_FP64:
      return ElementType::float64;
    case TUTTI_UINT8:
      return ElementType::uint8;
    case TUTTI_INT32:
      return ElementType::int32;
    case TUTTI_UINT32:
      return ElementType::uint32;
    case TUTTI_INT64:
      return ElementType::int64;
    case TUTTI_UINT64:
      return ElementType::uint64;
    default:
      throw InvalidArgument(
          fmt::format("an own array cannot have element type {} (not fp32, fp64 or an integer); "
                      "use one of these",
                      static_cast<int>(type)));
  }
}

std::vector<std::size_t> extents(const int64_t* values, int axes, const char* what)
{
  std::vector<std::size_t> out;
  for (int axis = 0; axis < axes; ++axis) {
    const int64_t value = (&given(values, what))[axis];
    if (value < 0)
      throw InvalidArgument(
          fmt::format("{} is refused ({} along axis {}); give numbers from 0", what, value, axis));
    out.push_back(static_cast<std::size_t>(value));
  }
  return out;
}

/// `add` puts an array of a new name into `arrays`: an old one of that name goes, but not if the
/// new one is refused.
template <class Add>
void bind(OwnArrays& arrays, const std::string& name, Add&& add)
{
  OwnArrays changed = arrays;
  changed.remove(name);
  add(changed);
  arrays = std::move(changed);
}

}  // namespace

tutti_status tutti_array_bind(tutti_run run, const char* name, tutti_type type, int axes,
                              const int64_t* shape, const int64_t* begin, const int64_t* extent,
                              void* values)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    const std::string own = text(name, "the array's name");
    bind(r.own_arrays, own, [&](OwnArrays& arrays) {
      arrays.add(
          own, element_type(type), values, extents(shape, axes, "the shape"),
          {extents(begin, axes, "the part's begin"), extents(extent, axes, "the part's extent")});
    });
  });
}

tutti_status tutti_scalar_bind(tutti_run run, const char* name, tutti_type type, void* value)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    const std::string own = text(name, "the scalar's name");
    bind(r.own_arrays, own,
         [&](OwnArrays& arrays) { arrays.add_scalar(own, element_type(type), value); });
  });
}

// --- finding and restoring -----------------------------------------------------------------------

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
    refuse_second_save(run, "a restore");
    own = text(path, what);
    coordinator.boundary();  // refuses what no window may be open for
  });
  return own;
}

RestoreOptions options_of_restore(const tutti_run_s& run)
{
  RestoreOptions options;
  options.verify = run.verify;
  options.epoch_samples = run.options.epoch_samples;
  if (!run.own_arrays.empty()) options.own = &run.own_arrays;
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
              restore_checkpoint(path, r.topology->topology, participants, options_of_restore(r)),
              path);
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
    const auto latest =
        restore_latest(path, r.topology->topology, participants, options_of_restore(r));
    if (file != nullptr) *file = nullptr;
    if (!latest) return;
    r.file = latest->file.string();
    take_over(r, coordinator, latest->restored, r.file);
    if (file != nullptr) *file = r.file.c_str();
  });
}

tutti_status tutti_checkpoint_restore_weights(tutti_run run, const char* file)
{
  return guarded([&] {
    tutti_run_s& r = given(run, "the run");
    Coordinator& coordinator = r.started("tutti_checkpoint_restore_weights");
    const std::string path = may_restore(r, coordinator, file, "the file");
    const std::vector<Participant*> participants = r.participants();
    RestoreOptions options;
    options.verify = r.verify;
    options.weights_only = options.change_precision = true;
    restore_checkpoint(path, r.topology->topology, participants, options);
    detail::on_all_ranks(r.topology->topology.world(), [&] { r.write_bound_weights(); });
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
