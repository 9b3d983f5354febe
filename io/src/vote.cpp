// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One integer minimum finds the first rank that failed; only then do words travel.
#include "vote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>

#include "tutti/checkpoint_restore.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::detail {
namespace {

/// Of IllegalState, which has the code of every refused checkpoint.
constexpr auto illegal_state = static_cast<ErrorCode>(0);

struct Problem {
  ErrorCode code = ErrorCode::io;
  std::string text;
  bool exists = false;
};

void broadcast_from(MPI_Comm communicator, std::string& text, int root)
{
  std::uint64_t length = text.size();
  check_mpi(MPI_Bcast(&length, 1, MPI_UINT64_T, root, communicator), "MPI_Bcast");
  text.resize(length);
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  for (std::uint64_t begin = 0; begin < length; begin += most) {
    const int count = static_cast<int>(std::min(most, length - begin));
    check_mpi(MPI_Bcast(text.data() + begin, count, MPI_CHAR, root, communicator), "MPI_Bcast");
  }
}

Problem attempt(const std::function<void()>& work)
{
  try {
    work();
    return {};
  } catch (const MpiError&) {
    throw;
  } catch (const IllegalState& error) {
    return {illegal_state, error.what(), true};
  } catch (const Error& error) {
    return {error.code(), error.what(), true};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::io, "out of memory for a checkpoint (allocation failed); use more ranks",
            true};
  } catch (const std::exception& error) {
    return {ErrorCode::io, error.what(), true};
  } catch (...) {
    return {ErrorCode::io, "an exception that is not a std::exception", true};
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
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  const int mine = problem.exists ? rank : size;
  int speaker = size;
  check_mpi(MPI_Allreduce(&mine, &speaker, 1, MPI_INT, MPI_MIN, communicator), "MPI_Allreduce");
  if (speaker == size) return;

  int code = static_cast<int>(problem.code);
  check_mpi(MPI_Bcast(&code, 1, MPI_INT, speaker, communicator), "MPI_Bcast");
  problem.code = static_cast<ErrorCode>(code);
  broadcast_from(communicator, problem.text, speaker);
  if (always_name_rank || problem.code == ErrorCode::io)
    problem.text = fmt::format("rank {}: {}", speaker, problem.text);
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

void broadcast(MPI_Comm communicator, std::string& text) { broadcast_from(communicator, text, 0); }

}  // namespace tutti::detail
