// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The callback form of Participant: an optimizer of a C or Fortran code under tutti's decision.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/participant.hpp"
#include "tutti/topology.hpp"
#include "tutti/tutti.h"

namespace tutti::c {

/// A state array of the caller: for each parameter this rank's piece in fp32.
struct BoundArray {
  std::string name;
  std::vector<float*> values;  ///< by parameter; nullptr: not given
};

class CallbackParticipant final : public Participant {
 public:
  /// Local. `copier`: for values that are shown in TUTTI_CUDA; may be nullptr.
  CallbackParticipant(const Topology& topology, std::string name, ParameterSet parameters,
                      const tutti_callbacks& callbacks, std::vector<BoundArray> arrays,
                      Device* copier);
  ~CallbackParticipant() override;

  const std::string& name() const override { return name_; }
  std::size_t parameters() const override { return parameters_.size(); }
  std::string parameter_name(std::size_t p) const override { return parameters_[p].name; }
  Policy::Betas betas(std::size_t) const override { return {}; }
  std::uint64_t configuration_hash() const override;
  std::uint64_t plan_hash() const override { return plan_.hash(); }
  void open() override;
  void accumulate(std::uint32_t micro) override;
  void close() override {}
  void exchange() override;
  void inspect(Ballot& ballot, std::span<std::uint8_t> has_gradient) override;
  void stage(const Update& update) override;
  void gather() override;
  void confirm(Confirm& confirm) override;
  void publish() noexcept override;
  void discard() noexcept override;
  /// The caller's arrays in blocks, as of the last read_caller_state() or restore.
  StateView state() override;
  /// Collective: the owners' blocks reach the caller's arrays on every rank that holds them.
  void restored() override;

  /// Copies the caller's arrays into the blocks. Not in state(): a restore looks at it after it has
  /// filled the blocks, too.
  void read_caller_state();

  /// What tutti_inspection_add does.
  void show(tutti_inspection_s& inspection, std::size_t parameter, std::size_t first,
            std::size_t count, tutti_part part, tutti_type type, tutti_space space,
            const void* values);

 private:
  void check(const char* callback, int code) const;
  void spread(float* piece, std::size_t parameter) const;

  const Topology& topology_;
  const std::string name_;
  const ParameterSet parameters_;
  const ShardPlan plan_;
  const SlotLayout& layout_;
  const std::vector<std::uint32_t>& shard_;
  tutti_callbacks callbacks_;
  std::vector<BoundArray> arrays_;
  std::vector<std::vector<float>> blocks_;  ///< of each array, what StateView shows
  Device* copier_;
  std::unique_ptr<Device> host_;             ///< its kernels scan
  float *shown_ = nullptr, *sum_ = nullptr;  ///< one block each, of host_
  int exchange_code_ = 0, gather_code_ = 0;  ///< told in the next local phase
};

}  // namespace tutti::c

/// Where tutti_inspection_add adds to: a ballot or a confirm.
struct tutti_inspection_s {
  tutti::c::CallbackParticipant* participant = nullptr;
  tutti::Ballot* ballot = nullptr;
  std::span<std::uint8_t> has_gradient;
  tutti::Confirm* confirm = nullptr;
  /// The first refusal of tutti_inspection_add: what was not looked at must not pass for finite,
  /// whether or not the callback looks at the status.
  std::exception_ptr refusal = nullptr;
};
