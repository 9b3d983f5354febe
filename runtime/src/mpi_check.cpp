// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The text of a failed MPI call, and of an object that was left open. Where a rank's number comes
// from is rank_label.hpp; what a failure means for the job is the caller's.
#include "tutti/mpi_check.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "rank_label.hpp"

namespace tutti {
namespace {

std::atomic<int> labelled_rank{-1};

std::string text_of(int status)
{
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(status, text, &length) != MPI_SUCCESS) {
    return fmt::format("error code {}", status);
  }
  return std::string(text, static_cast<std::size_t>(length));
}

std::string speaker()
{
  const int rank = labelled_rank.load(std::memory_order_relaxed);
  return rank < 0 ? "" : fmt::format("rank {}: ", rank);
}

// A path of the build machine says nothing to a user.
std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

namespace detail {

void label_rank(int rank) noexcept { labelled_rank.store(rank, std::memory_order_relaxed); }

void report_left_open(const char* object, const char* call) noexcept
{
  static std::atomic<bool> reported{false};
  if (std::uncaught_exceptions() > 0 || reported.exchange(true)) return;
  try {
    fmt::print(stderr,
               "tutti: {}{} is left open (what it holds of MPI is freed by all ranks together, not "
               "by a destructor); call {} on all ranks before it goes\n",
               speaker(), object, call);
  } catch (...) {
    return;  // nobody is left to tell
  }
}

}  // namespace detail

void check_mpi(int status, const char* what, std::source_location where)
{
  if (status == MPI_SUCCESS) return;
  throw MpiError(fmt::format("{}{} failed ({}; {}:{}); the job must end", speaker(), what,
                             text_of(status), file_name(where.file_name()), where.line()),
                 status);
}

}  // namespace tutti
