// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The agreement on failures outside a step.
#include "agreement.hpp"

#include <fmt/format.h>

#include "tutti/coordinator.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {

ExitCode exit_code_of(const std::exception& error)
{
  if (const auto* refusal = dynamic_cast<const Refusal*>(&error)) return refusal->code;
  if (dynamic_cast<const Halt*>(&error) != nullptr) return ExitCode::halted;
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return ExitCode::usage;
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return ExitCode::usage;
  return ExitCode::error;
}

void collectively(MPI_Comm communicator, const std::function<void()>& work)
{
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  std::string message;
  int code = 0;
  try {
    work();
  } catch (const MpiError&) {
    throw;
  } catch (const std::bad_alloc&) {
    code = static_cast<int>(ExitCode::error);
    message =
        "memory is exhausted (an allocation failed); use fewer ranks on the node or a smaller "
        "model";
  } catch (const std::exception& error) {
    code = static_cast<int>(exit_code_of(error));
    message = error.what();
  }
  int first = code == 0 ? size : rank;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, communicator),
            "MPI_Allreduce");
  if (first == size) return;
  int head[2] = {code, static_cast<int>(message.size())};
  check_mpi(MPI_Bcast(head, 2, MPI_INT, first, communicator), "MPI_Bcast");
  message.resize(static_cast<std::size_t>(head[1]));
  check_mpi(MPI_Bcast(message.data(), head[1], MPI_CHAR, first, communicator), "MPI_Bcast");
  const bool names_rank = first == 0 || message.rfind("rank ", 0) == 0;
  throw Refusal(static_cast<ExitCode>(head[0]),
                names_rank ? message : fmt::format("rank {}: {}", first, message));
}

}  // namespace tutti::apps
