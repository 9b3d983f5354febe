// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Adam(W) over sharded fp32 master weights and moments: tutti's own Participant. It puts the
// exchange and the block kernels together; it decides nothing.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/exchange.hpp"
#include "tutti/participant.hpp"

namespace tutti {

struct AdamOptions {
  std::string name = "adam";  ///< each of a coordinator's optimizers has its own
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;                  ///< true: AdamW
  double ema_decay = 0;                    ///< 0: no EMA of the master weights
  UpdateMode update = UpdateMode::staged;  ///< as the policy's
  std::uint32_t micro_batches = 1;         ///< of a window, as the coordinator's
  bool fp32_wire =
      false;  ///< exchange in fp32 even where one micro-batch would travel as handed in
  bool reduce_scatter = false;  ///< MPI's collective instead of `ordered`
  bool nccl = false;  ///< exchange between CUDA devices by NCCL; nothing but the way differs
  std::vector<double> rank_weights{};  ///< empty: all equal
};

class ShardedAdam : public Participant {
 public:
  /// Collective over topology.world(); throws the same error on all ranks. `topology` and `device`
  /// must outlive it.
  ShardedAdam(const Topology& topology, Device& device, ParameterSet parameters,
              AdamOptions options);
  ~ShardedAdam() override;
  /// Collective: frees windows and buffers.
  void close_buffers();

  const ParameterSet& parameter_set() const;
  const ShardPlan& plan() const;
  const AdamOptions& options() const;
  /// What this rank's slot holds of a parameter.
  const Piece& piece(std::size_t parameter) const;

  /// Where this rank writes the gradient of the current micro-batch: piece(p).elements values in
  /// the parameter's precision, row-major, equal to (sum over the micro-batch's samples) x loss
  /// scale / nominal window samples. Overwrite, do not add. Valid from opening a window until its
  /// step().
  void* gradient(std::size_t parameter);
  /// This rank has no gradient of `parameter` in the current micro-batch.
  void set_absent(std::size_t parameter);
  /// The model values of this rank's piece in the parameter's precision. Valid until the next
  /// step().
  const void* weights(std::size_t parameter) const;

  /// Collective: sets initial values. `values(p)` is called at most once a parameter and returns
  /// its *global* array in fp32 (row-major), equal on all ranks; each rank keeps what it owns, and
  /// is not asked for the rest. Moments become zero. Where one rank's `values` throws, or has
  /// another number of elements, all ranks throw InvalidArgument.
  void initialize(const std::function<std::vector<float>(std::size_t)>& values);

  /// Bytes that this rank allocated, and how its exchange works, for the log.
  std::size_t allocated_bytes() const;
  const std::string& exchange_description() const;

  const std::string& name() const override;
  std::size_t parameters() const override;
  std::string parameter_name(std::size_t parameter) const override;
  Policy::Betas betas(std::size_t parameter) const override;
  std::uint64_t configuration_hash() const override;
  std::uint64_t plan_hash() const override;
  void open() override;
  void accumulate(std::uint32_t micro) override;
  void close() override;
  void exchange() override;
  void inspect(Ballot& ballot, std::span<std::uint8_t> has_gradient) override;
  void inspect_replicas(Ballot& ballot) override;
  void stage(const Update& update) override;
  void gather() override;
  void gather_digests() override;
  void confirm(Confirm& confirm) override;
  void publish() noexcept override;
  void discard() noexcept override;
  StateView state() override;
  void restored() override;
  OffenderDetail detail(const Offender& offender) override;
  bool knows_contributors() const override;
  std::optional<std::uint64_t> digest_contribution(std::uint64_t& digest) override;
  PrecisionNames precisions(std::size_t parameter) const override;
  bool inject_gradient(const std::string& parameter, std::uint64_t element, float value) override;
  bool inject_overflow() override;
  bool inject_state(const std::string& parameter, std::uint64_t element, float value) override;
  bool inject_bitflip(const std::string& parameter, std::uint64_t element, unsigned bit) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
