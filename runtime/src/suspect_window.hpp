// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The window of a bad verdict computed once more, by the ranks that it came from and by others:
// what was seen of it is told apart in recomputation.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/coordinator.hpp"

namespace tutti {

class Coordinator::SuspectWindow {
 public:
  SuspectWindow(Coordinator& coordinator, const Window& window) : c_(coordinator), window_(window)
  {
  }

  /// Whether the verdict is about something that one rank came to from its samples; the same on all
  /// ranks, also where they were not started alike.
  bool is_to_blame(const Outcome& outcome) const;

  /// Collective: the window of the data-parallel group of rank `suspect` once more, there and on
  /// the next group. What was contributed is overwritten.
  Recomputation compute_again(int suspect);

  /// What one rank tells the others.
  struct Account {
    std::uint64_t first = 0, again = 0;  ///< digests
    std::uint64_t first_finite = 0, again_finite = 0;
    std::uint64_t arithmetic = 0, failed = 0;
  };
  using AccountWords = std::array<std::uint64_t, sizeof(Account) / sizeof(std::uint64_t)>;

 private:
  std::vector<double> compute(int group, Failure& failure, std::string& text);
  void digest(const std::vector<double>& losses, std::uint64_t& out, std::uint64_t& finite) const;
  Recomputation agree_on_cause(const Account& own, int suspect, int other, std::string text);

  Coordinator& c_;
  const Window& window_;
};

}  // namespace tutti
