// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tutti/error.hpp"

namespace tutti::c {

bool Setting::is(std::string_view name)
{
  known_.emplace_back(name);
  if (name != name_) return false;
  found_ = true;
  return true;
}

void Setting::refuse(const std::string& value, const std::string& range) const
{
  throw ConfigError(
      fmt::format("{} = {} is refused (not {}); give a value in range", name_, value, range));
}

void Setting::whole(std::string_view name, double value, std::uint64_t& target, double minimum,
                    double maximum)
{
  if (!is(name)) return;
  if (!(value >= minimum && value <= maximum) || value != std::floor(value))
    refuse(fmt::format("{}", value), fmt::format("a whole number from {} to {}", minimum, maximum));
  target = static_cast<std::uint64_t>(value);
}

void Setting::real(std::string_view name, double value, double& target, double minimum,
                   double maximum)
{
  if (!is(name)) return;
  if (!(value >= minimum && value <= maximum))
    refuse(fmt::format("{}", value), maximum < std::numeric_limits<double>::max()
                                         ? fmt::format("from {} to {}", minimum, maximum)
                                         : fmt::format("finite and at least {}", minimum));
  target = value;
}

void Setting::flag(std::string_view name, double value, bool& target)
{
  if (!is(name)) return;
  if (value != 0 && value != 1) refuse(fmt::format("{}", value), "0 or 1");
  target = value == 1;
}

std::size_t Setting::index_of(const std::string& value,
                              const std::vector<std::string>& choices) const
{
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found == choices.end())
    refuse(fmt::format("'{}'", value), fmt::format("{}", fmt::join(choices, " or ")));
  return static_cast<std::size_t>(found - choices.begin());
}

void Setting::finish() const
{
  if (found_) return;
  throw ConfigError(fmt::format("there is no setting '{}' ({} has {}); check the name", name_, of_,
                                fmt::join(known_, ", ")));
}

}  // namespace tutti::c
