// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How a failure on one rank outside a step becomes the same end on all ranks: work is done
// everywhere, then all ranks look at whether it went well everywhere.
#pragma once

#include <mpi.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace tutti::apps {

/// Exit codes of the command: 2 usage or configuration, 3 halted by policy, 4 a rank hung, 75 saved
/// and to be run again (another one with --requeue-exit).
enum class ExitCode : int { ok = 0, error = 1, usage = 2, halted = 3, hung = 4, stopped = 75 };

/// The exit code that an exception stands for.
ExitCode exit_code_of(const std::exception& error);

/// Thrown by all ranks with the same content; rank 0 speaks.
struct Refusal : std::runtime_error {
  Refusal(ExitCode c, const std::string& message) : std::runtime_error(message), code(c) {}
  ExitCode code;
};

/// Collective over `communicator`: runs `work` on every rank. If it throws on any, all ranks throw
/// Refusal with the message of the lowest of them. `work` may hold collective calls as long as all
/// ranks get through them. An MpiError is not caught: it cannot be agreed on.
void collectively(MPI_Comm communicator, const std::function<void()>& work);

}  // namespace tutti::apps
