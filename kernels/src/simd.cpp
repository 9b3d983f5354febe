// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which SIMD tables this machine can run, and the choice among them.
#include "simd_targets.hpp"

#include <hwy/targets.h>

#include <algorithm>

#include "block_bodies.hpp"
#include "simd_scan.hpp"
#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

template <std::int64_t target>
SimdKernels kernels_of(const char* name, const char* display)
{
  SimdKernels kernels{.name = name, .display = display};
  const Target<target> tag;
  add_sum_kernels(kernels, tag);
  add_adam_kernels(kernels, tag);
  add_accumulate_kernels(kernels, tag);
  add_convert_kernels(kernels, tag);
  add_digest_kernels(kernels, tag);
  add_stream_kernels(kernels, tag);
  return kernels;
}

// Every name that TUTTI_SIMD takes on any machine, best first.
constexpr std::string_view known_names[] = {"avx512", "avx2", "baseline"};

std::vector<SimdKernels> make_tables()
{
  std::vector<SimdKernels> tables;
  const std::int64_t supported = hwy::SupportedTargets();
  static_cast<void>(supported);
#if (HWY_TARGETS & HWY_AVX3) && HWY_STATIC_TARGET != HWY_AVX3
  if ((supported & HWY_AVX3) != 0) tables.push_back(kernels_of<HWY_AVX3>("avx512", "AVX-512"));
#endif
#if (HWY_TARGETS & HWY_AVX2) && HWY_STATIC_TARGET != HWY_AVX2
  if ((supported & HWY_AVX2) != 0) tables.push_back(kernels_of<HWY_AVX2>("avx2", "AVX2"));
#endif
  tables.push_back(kernels_of<HWY_STATIC_TARGET>("baseline", "baseline"));
  return tables;
}

}  // namespace

const std::vector<SimdKernels>& simd_kernels()
{
  static const std::vector<SimdKernels> tables = make_tables();
  return tables;
}

const SimdKernels& simd_kernels_within(std::string_view limit)
{
  const auto& tables = simd_kernels();
  if (limit.empty()) return tables.front();
  const auto known = std::find(std::begin(known_names), std::end(known_names), limit);
  if (known == std::end(known_names))
    throw ConfigError(
        "TUTTI_SIMD=" + std::string(limit) +
        " is not known (no such instruction set); use baseline, avx2 or avx512, or unset it");
  for (auto name = known; name != std::end(known_names); ++name)
    for (const SimdKernels& table : tables)
      if (table.name == *name) return table;
  return tables.back();
}

BlockScan scan_elements(const void* values, Precision precision, std::size_t elements)
{
  LaneScan seen;
  for (std::size_t i = 0; i < elements; ++i)
    seen.see(load_element(values, precision, i), static_cast<std::uint32_t>(i));
  return seen.result();
}

}  // namespace tutti::detail
