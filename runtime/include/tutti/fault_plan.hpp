// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Faults for tests and drills, given as `kind:key=value,...`. A plan only answers "does a fault
// fire here?"; what it does is done where the phase is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/verdict.hpp"

namespace tutti {

enum class FaultKind : std::uint8_t {
  nonfinite,
  loss,
  scale,
  update,
  state,
  bitflip,
  throw_,
  die,
  stall
};

/// `step` is the number of updates committed before the attempt and fires on every attempt at that
/// step; `attempt` fires once, counting all attempts of the run from 1. Exactly one of them is
/// given.
struct Fault {
  FaultKind kind = FaultKind::nonfinite;
  std::optional<std::uint64_t> step, attempt;
  std::optional<int> rank = 0;  ///< world rank; nothing (`*` in the text): every rank
  std::uint32_t micro = 0;
  std::string parameter = "*";  ///< a name, or * for the first that this rank holds
  /// Within the parameter as this rank holds it (state: owns it), wrapping around.
  std::uint64_t element = 0;
  /// nonfinite, loss, state: inf, -inf, nan, or a number, with which only a sum or an update may
  /// leave its range.
  float value = 0;
  /// nonfinite, loss: also when the window is computed again, as a machine that is broken for good.
  bool permanent = false;
  double factor = 2;                     ///< scale
  unsigned bit = 0;                      ///< bitflip
  std::optional<std::size_t> optimizer;  ///< index of the participant; every one if not given
  Phase phase = Phase::window;           ///< throw, die, stall
  bool launcher = false;                 ///< die: kill the launcher instead (this process's parent)
  double seconds = 0;                    ///< stall; 0: until somebody ends the process
};

/// Throws ConfigError: `fault 'x' ... (reason); suggestion`. E.g.
/// "nonfinite:step=3,rank=1,micro=0,param=*,element=5,value=inf".
Fault parse_fault(const std::string& text);

class FaultPlan {
 public:
  FaultPlan() = default;
  explicit FaultPlan(std::vector<Fault> faults) : faults_(std::move(faults)) {}
  /// The faults of a kind that fire on `rank` in the attempt after `step` committed updates that is
  /// number `attempt`.
  std::vector<const Fault*> firing(FaultKind kind, int rank, std::uint64_t step,
                                   std::uint64_t attempt) const;
  /// `rank` enters `phase`: throws std::runtime_error, kills by SIGKILL or stalls as planned; does
  /// nothing where nothing is planned. In a save `attempt` is that of its boundary.
  void reach(Phase phase, int rank, std::uint64_t step, std::uint64_t attempt) const;
  bool empty() const { return faults_.empty(); }
  const std::vector<Fault>& faults() const { return faults_; }

 private:
  std::vector<Fault> faults_;
};

}  // namespace tutti
