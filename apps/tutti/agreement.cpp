// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The agreement on failures outside a step.
#include "agreement.hpp"

#include <fmt/format.h>

#include "tutti/coordinator.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"

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
  std::string message;
  int code = 0;
  try {
    work();
  } catch (const MpiError&) {
    throw;
  } catch (const std::bad_alloc&) {
    code = static_cast<int>(ExitCode::error);
    message = text_of_failure(
        "memory is exhausted (an allocation failed); use fewer ranks on the node or a smaller "
        "model");
  } catch (const std::exception& error) {
    code = static_cast<int>(exit_code_of(error));
    message = text_of_failure(error.what());
  }
  const int first = first_text(communicator, code, message);
  if (first < 0) return;
  const bool names_rank = first == 0 || message.rfind("rank ", 0) == 0;
  throw Refusal(static_cast<ExitCode>(code),
                names_rank ? message : fmt::format("rank {}: {}", first, message));
}

}  // namespace tutti::apps
