// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The Participant seam: what the step boundary drives. ShardedAdam is one; a code that keeps its
// own optimizer wraps it in another and takes the decision, scaler, schedule, ledger and
// checkpoints from tutti.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/ballot.hpp"
#include "tutti/control_state.hpp"
#include "tutti/parameters.hpp"
#include "tutti/policy.hpp"
#include "tutti/shard_plan.hpp"

namespace tutti {

class Device;
struct OffenderDetail;
struct PrecisionNames;

/// One fp32 array of optimizer state over the owned blocks of a shard (padding is zero).
struct StateArray {
  std::string name;       ///< "master", "exp_avg", "exp_avg_sq", "ema"
  float* data = nullptr;  ///< [shard blocks x block_elements]
};

/// A participant's distributed state: what a checkpoint saves and `state_digest` covers.
struct StateView {
  const ParameterSet* parameters = nullptr;
  const ShardPlan* plan = nullptr;
  std::vector<StateArray> arrays;
  /// Where the arrays live; nothing: in memory that the host reads and writes.
  Device* device = nullptr;
};

/// What a committed attempt applies.
struct Update {
  double grad_factor = 1;           ///< unscale x clip x B / N
  double clip = 1;                  ///< of grad_factor, what clips
  double learning_rate_factor = 1;  ///< of the schedule
  UpdateMode mode = UpdateMode::staged;
  bool digests = false;                    ///< the digests of the new weights will be gathered
  std::span<const ParameterClock> clocks;  ///< before this update, this participant's parameters
  std::span<const std::uint8_t> has_gradient;  ///< per parameter: some rank has one
};

/// One rank's part of one optimizer. The coordinator calls the functions of an attempt in the order
/// in which they stand here. "Local" ones may throw: the exception becomes a flag in the next
/// ballot and the others still run. "Collective" ones are called by all ranks on every path and may
/// throw only MpiError.
class Participant {
 public:
  virtual ~Participant() = default;
  /// Its own among a coordinator's participants: checkpoints go by it.
  virtual const std::string& name() const = 0;
  virtual std::size_t parameters() const = 0;
  virtual std::string parameter_name(std::size_t parameter) const = 0;
  /// beta1 and beta2 of each parameter, for the clocks.
  virtual Policy::Betas betas(std::size_t parameter) const = 0;
  /// Of all that must agree over ranks (parameters, plan, hyperparameters).
  virtual std::uint64_t configuration_hash() const = 0;
  virtual std::uint64_t plan_hash() const = 0;

  /// Local: a new window opens.
  virtual void open() = 0;
  /// Local: takes the gradients of micro-batch `micro`.
  virtual void accumulate(std::uint32_t micro) = 0;
  /// Local: the window is complete (zero what this rank did not contribute).
  virtual void close() = 0;
  /// Collective over the memory domain, then over all ranks.
  virtual void exchange() = 0;
  /// Local: adds nonfinite count, first offender, sum of squares, largest magnitude, and sets
  /// has_gradient[p] for parameters that this rank has gradients of.
  virtual void inspect(Ballot& ballot, std::span<std::uint8_t> has_gradient) = 0;
  /// Local, after inspect() where a check of replicas is due: compares the copies of the weights
  /// that this rank answers for with what their owners wrote; sets replica and replica_faults.
  virtual void inspect_replicas(Ballot& /*ballot*/) {}
  /// Local: computes the update beside the state (or over it, when in place).
  virtual void stage(const Update& update) = 0;
  /// Collective: new weights reach their users.
  virtual void gather() = 0;
  /// Collective, after gather() where Update::digests was set: their digests too.
  virtual void gather_digests() {}
  /// Local: what staging saw.
  virtual void confirm(Confirm& confirm) = 0;
  /// Local: the staged update becomes the state. Allocates nothing, cannot fail.
  virtual void publish() noexcept = 0;
  /// Local: the staged update, or what there is of it, is forgotten; the state is byte for byte
  /// what it was. Where another participant's stage() failed first, this one's was not called.
  virtual void discard() noexcept = 0;

  /// The arrays as they are now, in the committed state.
  virtual StateView state() = 0;
  /// Collective: the arrays were overwritten (restore); derive everything else from them. What can
  /// fail on one rank is agreed on before it throws.
  virtual void restored() = 0;

  /// Local, after a bad verdict and before the next window, on the rank that `offender` names: what
  /// only this rank can say of it. May throw.
  virtual OffenderDetail detail(const Offender& offender);
  /// Whether this participant tells whose contribution made a sum over ranks nonfinite; otherwise
  /// an offender found there names the rank that saw it. The same on all ranks.
  virtual bool knows_contributors() const { return true; }
  /// Local, after a bad verdict and before the next window: adds the bits of what this rank
  /// contributes to the window, as close() left it, to `digest`, and returns how many of its
  /// elements are nonfinite; nothing if it cannot say. A digest depends on nothing but these bits
  /// and the layout of the model-parallel slot. For computing a window again, which calls open(),
  /// accumulate() and close() once more. May throw.
  virtual std::optional<std::uint64_t> digest_contribution(std::uint64_t& /*digest*/)
  {
    return std::nullopt;
  }
  /// Of one parameter, for incidents.
  virtual PrecisionNames precisions(std::size_t parameter) const;

  /// For the fault plan: overwrite one element of the current micro-batch's gradient, or flip a bit
  /// of a published weight; `parameter` is a name or "*", `element` wraps around. Return false when
  /// this rank does not hold it.
  virtual bool inject_gradient(const std::string& /*parameter*/, std::uint64_t /*element*/,
                               float /*value*/)
  {
    return false;
  }
  /// After the exchange: makes the summed gradient of one owned element so large that the staged
  /// update overflows.
  virtual bool inject_overflow() { return false; }
  /// An element of the optimizer's own state; `element` counts in what this rank owns of it.
  virtual bool inject_state(const std::string& /*parameter*/, std::uint64_t /*element*/,
                            float /*value*/)
  {
    return false;
  }
  virtual bool inject_bitflip(const std::string& /*parameter*/, std::uint64_t /*element*/,
                              unsigned /*bit*/)
  {
    return false;
  }
};

/// Collective over `communicator`: the digest of design section 9 over all participants' arrays;
/// equal for equal state at any degree, shard plan or update mode.
std::uint64_t state_digest(std::span<Participant* const> participants, MPI_Comm communicator);
/// Local: what world rank `rank` adds to it for one participant; the parts are added mod 2^64.
std::uint64_t state_digest_part(const std::string& participant, const StateView& state, int rank);
/// Local: what one block of it adds, number `in_shard` of the rank's shard. Its values are given,
/// so that they may come from a copy; of `state` only parameters and plan are looked at.
std::uint64_t state_digest_part(const std::string& participant, const StateView& state, int rank,
                                const std::string& array, std::size_t in_shard,
                                const float* values);

}  // namespace tutti
