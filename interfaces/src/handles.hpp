// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is behind the opaque handles of tutti.h. Each counts who still uses it, because what is
// freed collectively cannot be freed by whoever happens to be last.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "callback_participant.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/checkpoint_save.hpp"
#include "tutti/coordinator.hpp"
#include "tutti/sharded_adam.hpp"
#include "tutti/topology.hpp"
#include "tutti/tutti.h"
#include "values.hpp"

struct tutti_topology_s {
  tutti_topology_s(MPI_Comm communicator, int model_parallel)
      : topology(communicator, {.model_parallel = model_parallel})
  {
  }
  tutti::Topology topology;
  int users = 0;  ///< optimizers and runs
};

struct tutti_optimizer_s {
  tutti_topology_s* topology = nullptr;
  std::string name;
  tutti::ParameterSet parameters;
  tutti_run_s* run = nullptr;  ///< that it was added to

  // Settings.
  tutti::AdamOptions options;
  double rank_weight = 1;
  bool on_cuda = false;
  std::unique_ptr<tutti::Device> device;  ///< made when it is first needed

  // Adam.
  struct Weights {
    tutti::c::Values bound;      ///< data == nullptr: not bound
    std::vector<float> initial;  ///< of the piece; empty: zero
  };
  std::vector<Weights> weights;
  std::unique_ptr<tutti::ShardedAdam> adam;  ///< from tutti_run_start on
  std::vector<std::uint8_t> given;           ///< gradients of the current micro-batch

  // The caller's own.
  std::optional<tutti_callbacks> callbacks;
  std::vector<tutti::c::BoundArray> arrays;
  std::unique_ptr<tutti::c::CallbackParticipant> own;  ///< from tutti_run_start on

  bool is_adam() const { return !callbacks; }
  bool started() const { return adam || own; }
  tutti::Participant* participant() const
  {
    return adam ? static_cast<tutti::Participant*>(adam.get()) : own.get();
  }
  tutti::Device* make_device();
  tutti::Piece piece(std::size_t parameter) const;
  /// The published weights of a parameter, as tutti holds them.
  tutti::c::Values held_weights(std::size_t parameter) const;
  /// Copies the published weights to the caller's arrays. Local.
  void write_bound_weights();
};

struct tutti_run_s {
  tutti_topology_s* topology = nullptr;
  tutti::CoordinatorOptions options;
  std::vector<tutti::Fault> faults;
  std::string configuration = "{}";
  std::uint64_t checkpoint_keep = 0;
  tutti::CheckpointIo checkpoint_io = tutti::CheckpointIo::mpiio;
  tutti::Verify verify = tutti::Verify::full;
  double watchdog_seconds = 0;
  tutti_lost lost = nullptr;
  void* lost_context = nullptr;
  tutti_recompute recompute = nullptr;
  void* recompute_context = nullptr;
  std::vector<tutti_optimizer_s*> optimizers;

  enum class State { settings, failed, started } state = State::settings;
  std::unique_ptr<tutti::Watchdog> watchdog;
  std::unique_ptr<tutti::Coordinator> coordinator;
  std::optional<tutti::Window> window;
  std::atomic<bool> stop_requested{false};
  tutti::Outcome outcome;  ///< of the last attempt
  std::string file, configuration_read, incident_json;

  // Checkpoints.
  tutti::OwnArrays own_arrays;
  std::unique_ptr<tutti::CheckpointWriter> writer;  ///< of background saves, for `save_directory`
  std::string save_directory;
  std::uint64_t saved_step = 0, saved_attempt = 0;  ///< of the boundary that was saved last

  tutti::Coordinator& started(const char* call);
  tutti::Window& open_window();
  std::vector<tutti::Participant*> participants() const;
  void write_bound_weights();
  /// The gradients of a micro-batch are set: those that were not are absent.
  void end_micro_batch();
  /// As tutti::RecomputeSource.
  double compute_again(tutti::Interval positions, double gradient_scale);
  /// Before anything looks at the participants' state.
  void read_caller_state();
  bool save_in_flight() const { return writer && writer->in_flight(); }
  /// Collective: publishes the background save in flight, which must be there, and notes its file.
  void finish_save();

  /// Work of a call inside the window: a failure is also the window's, so that all ranks halt with
  /// it whether or not the caller looks at the status.
  template <class Work>
  void in_window(Work&& work)
  {
    tutti::Window& open = open_window();
    try {
      work(open);
    } catch (const tutti::MpiError&) {
      throw;
    } catch (const tutti::Error& error) {
      open.fail(static_cast<std::int64_t>(error.code()), error.what());
      throw;
    } catch (...) {
      open.fail(static_cast<std::int64_t>(tutti::ErrorCode::device), "out of memory");
      throw;
    }
  }
};
