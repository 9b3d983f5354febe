// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The typed errors of tutti. Messages follow `problem (reason); suggestion`.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace tutti {

enum class ErrorCode : int { invalid_argument = 1, mpi, device, io, checkpoint, config, halt };

/// Base of all errors. Each subclass says whether all ranks throw it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// A call that breaks its contract; thrown on the ranks that made it (all, when all made it).
struct InvalidArgument : Error {
  explicit InvalidArgument(const std::string& m) : Error(ErrorCode::invalid_argument, m) {}
};
/// A failing MPI call. Not collective: only the rank that saw it throws, and the job must end.
struct MpiError : Error {
  explicit MpiError(const std::string& m, int status = 0)
      : Error(ErrorCode::mpi, m), mpi_status(status)
  {
  }
  int mpi_status;
};
/// Device allocation or kernel failure, local until the next ballot carries it.
struct DeviceError : Error {
  explicit DeviceError(const std::string& m) : Error(ErrorCode::device, m) {}
};
/// A file that cannot be read or written; `rank`, path and errno are in the message. Thrown by all
/// ranks by collective calls.
struct IoError : Error {
  explicit IoError(const std::string& m) : Error(ErrorCode::io, m) {}
};
/// A checkpoint that is refused. Thrown by all ranks.
struct CheckpointError : Error {
  explicit CheckpointError(const std::string& m) : Error(ErrorCode::checkpoint, m) {}
};
/// A configuration that is refused. Thrown by all ranks that read it.
struct ConfigError : Error {
  explicit ConfigError(const std::string& m) : Error(ErrorCode::config, m) {}
};

}  // namespace tutti
