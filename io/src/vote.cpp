// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "vote.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>

#include "tutti/checkpoint_restore.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::detail {
namespace {

/// Of IllegalState, which has the code of every refused checkpoint.
constexpr auto illegal_state = static_cast<ErrorCode>(-1);

struct Problem {
  ErrorCode code{};  ///< 0: none
  std::string text;
};

Problem attempt(const std::function<void()>& work)
{
  try {
    work();
    return {};
  } catch (const MpiError&) {
    throw;
  } catch (const IllegalState& error) {
    return {illegal_state, text_of_failure(error.what())};
  } catch (const Error& error) {
    return {error.code(), text_of_failure(error.what())};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::io, text_of_failure("out of memory for a checkpoint (allocation failed); "
                                           "use more ranks")};
  } catch (const std::exception& error) {
    return {ErrorCode::io, text_of_failure(error.what())};
  } catch (...) {
    return {ErrorCode::io, text_of_failure("an exception that is not a std::exception")};
  }
}

[[noreturn]] void raise(const Problem& problem)
{
  if (problem.code == illegal_state) throw IllegalState(problem.text);
  switch (problem.code) {
    case ErrorCode::invalid_argument:
      throw InvalidArgument(problem.text);
    case ErrorCode::checkpoint:
      throw CheckpointError(problem.text);
    case ErrorCode::device:
      throw DeviceError(problem.text);
    case ErrorCode::config:
      throw ConfigError(problem.text);
    default:
      throw IoError(problem.text);
  }
}

void agree(MPI_Comm communicator, Problem problem, bool always_name_rank)
{
  int code = static_cast<int>(problem.code);
  const int rank = first_text(communicator, code, problem.text);
  if (rank < 0) return;
  problem.code = static_cast<ErrorCode>(code);
  if (always_name_rank || problem.code == ErrorCode::io)
    problem.text = fmt::format("rank {}: {}", rank, problem.text);
  raise(problem);
}

}  // namespace

void on_all_ranks(MPI_Comm communicator, const std::function<void()>& work)
{
  agree(communicator, attempt(work), true);
}

void on_rank_zero(MPI_Comm communicator, const std::function<void()>& work)
{
  int rank = 0;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  agree(communicator, rank == 0 ? attempt(work) : Problem{}, false);
}

}  // namespace tutti::detail
