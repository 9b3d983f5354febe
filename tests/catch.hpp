// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one place that knows which Catch2 is installed: 2.13 (one header) or 3 (a library with many).
#pragma once
#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
namespace tutti::test {
using Approx = Catch::Approx;
inline auto has_text(const std::string& part) { return Catch::Matchers::ContainsSubstring(part); }
}  // namespace tutti::test
#else
#include <catch2/catch.hpp>
namespace tutti::test {
using Approx = ::Catch::Detail::Approx;
inline auto has_text(const std::string& part) { return ::Catch::Matchers::Contains(part); }
}  // namespace tutti::test
#endif
