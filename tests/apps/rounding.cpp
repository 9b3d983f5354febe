// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arrays rounded to a storage precision are what storing and loading them gives.
#include "rounding.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "tutti/half.hpp"

using namespace tutti;
using namespace tutti::apps;

TEST_CASE("Rounding in place equals storing and loading, element by element", "[rounding]")
{
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 65521)
    values.push_back(float_from_bits(static_cast<std::uint32_t>(bits)));
  for (Precision precision : {Precision::fp16, Precision::bf16, Precision::fp32}) {
    std::vector<std::byte> stored(values.size() * bytes_of(precision));
    std::vector<float> loaded(values.size()), rounded = values;
    from_fp32(stored.data(), precision, values.data(), values.size());
    to_fp32(loaded.data(), stored.data(), precision, values.size());
    round_to(precision, rounded.data(), rounded.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = load_element(stored.data(), precision, i);
      const bool nan = std::isnan(values[i]);
      if (nan ? !(std::isnan(loaded[i]) && std::isnan(rounded[i]))
              : bits_of(loaded[i]) != bits_of(expected) || bits_of(rounded[i]) != bits_of(expected))
        ++wrong;
    }
    CHECK(wrong == 0);
  }
  float large[] = {65519.0f, 65520.0f, -7e4f};
  round_to(Precision::fp16, large, 3);
  CHECK(large[0] == 65504.0f);
  CHECK(large[1] == std::numeric_limits<float>::infinity());
  CHECK(large[2] == -std::numeric_limits<float>::infinity());
}
