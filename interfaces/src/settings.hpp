// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A setting by name. The code that has the targets reads as their list: each line is tried in turn,
// and `finish` refuses a name that no line knew.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::c {

class Setting {
 public:
  /// `of`: "a run", "Adam", for the messages.
  Setting(std::string name, std::string of) : name_(std::move(name)), of_(std::move(of)) {}

  bool is(std::string_view name);
  /// A whole number; the greatest is 2^53, up to which every one is a double.
  void whole(std::string_view name, double value, std::uint64_t& target, double minimum = 0,
             double maximum = 9007199254740992);
  void real(std::string_view name, double value, double& target, double minimum = 0,
            double maximum = std::numeric_limits<double>::max());
  void flag(std::string_view name, double value, bool& target);
  /// Index of `value` among `choices` into `target`, an int or an enumeration.
  template <class Target>
  void choice(std::string_view name, const std::string& value, Target& target,
              const std::vector<std::string>& choices)
  {
    if (is(name)) target = static_cast<Target>(index_of(value, choices));
  }
  /// Throws ConfigError if the name was none of the above.
  void finish() const;

 private:
  std::size_t index_of(const std::string& value, const std::vector<std::string>& choices) const;
  [[noreturn]] void refuse(const std::string& value, const std::string& range) const;

  std::string name_, of_;
  std::vector<std::string> known_;
  bool found_ = false;
};

}  // namespace tutti::c
