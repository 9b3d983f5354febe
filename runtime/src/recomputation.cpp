// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/recomputation.hpp"

#include <fmt/format.h>

#include <array>

namespace tutti {
namespace {

Cause cause_of(const Recomputation& r, const Contribution& first)
{
  const bool alone = r.other == r.rank;
  if (!alone && r.comparable) {
    if (!r.agrees) return Cause::machine;
    if (r.repeats || !r.finite) return Cause::data;
    return Cause::transient;
  }
  // Only whether values are finite can be compared; of a finite contribution (it was the sum over
  // ranks that left its range) that says nothing.
  if (!alone && first.finite) return Cause::unknown;
  if (r.finite) return r.repeats ? Cause::unknown : Cause::transient;
  if (alone) return Cause::unknown;
  return r.other_finite ? Cause::machine : Cause::data;
}

}  // namespace

std::string_view name_of(Cause cause)
{
  static constexpr std::array<std::string_view, 4> names = {"unknown", "transient", "machine",
                                                            "data"};
  const auto index = static_cast<std::size_t>(cause);
  return index < names.size() ? names[index] : "unknown";
}

void classify(Recomputation& result, const Contribution& first, const Contribution& again,
              const Contribution& elsewhere)
{
  result.finite = again.finite;
  result.repeats = again == first;
  result.other_finite = elsewhere.finite;
  result.agrees = elsewhere == again;
  result.cause = cause_of(result, first);
}

std::string explain(const Recomputation& r)
{
  if (!r.failure.empty()) return fmt::format("no result ({})", r.failure);
  const auto class_of = [](bool finite) { return finite ? "finite" : "nonfinite"; };
  const std::string own = fmt::format("{} on rank {}, {}", class_of(r.finite), r.rank,
                                      r.repeats ? "the same bits" : "not the same bits");
  if (r.other == r.rank)
    return fmt::format("{} ({}; there is no other data-parallel rank to ask)", name_of(r.cause),
                       own);
  std::string other = fmt::format("{} on rank {}", class_of(r.other_finite), r.other);
  if (r.comparable) other += r.agrees ? ", which agrees" : ", which does not agree";
  if (!r.comparable) other += ", which computes in another way";
  return fmt::format("{} ({}; {})", name_of(r.cause), own, other);
}

}  // namespace tutti
