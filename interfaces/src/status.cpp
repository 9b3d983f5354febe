// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The message of the last failing call, and the words for the enumerators of the C interface.
#include "status.hpp"

#include <cstring>

namespace {

// Not a std::string: to remember "out of memory" must not need memory.
thread_local char last_message[2048] = "";

using tutti::ErrorCode;
static_assert(TUTTI_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));
static_assert(TUTTI_MPI_ERROR == static_cast<int>(ErrorCode::mpi));
static_assert(TUTTI_DEVICE_ERROR == static_cast<int>(ErrorCode::device));
static_assert(TUTTI_IO_ERROR == static_cast<int>(ErrorCode::io));
static_assert(TUTTI_CHECKPOINT_ERROR == static_cast<int>(ErrorCode::checkpoint));
static_assert(TUTTI_CONFIG_ERROR == static_cast<int>(ErrorCode::config));
static_assert(TUTTI_HALT == static_cast<int>(ErrorCode::halt));
using tutti::VerdictKind;
static_assert(TUTTI_COMMIT == static_cast<int>(VerdictKind::commit));
static_assert(TUTTI_SKIP == static_cast<int>(VerdictKind::skip));
static_assert(TUTTI_HALTED == static_cast<int>(VerdictKind::halt));
using tutti::Reason;
static_assert(TUTTI_REASON_UPDATE == static_cast<int>(Reason::update));
static_assert(TUTTI_REASON_NONFINITE_STATE == static_cast<int>(Reason::nonfinite_state));
static_assert(TUTTI_REASON_CONSECUTIVE_SKIPS == static_cast<int>(Reason::consecutive_skips));
static_assert(TUTTI_REASON_REPLICA_MISMATCH == static_cast<int>(Reason::replica_mismatch));
static_assert(TUTTI_REASON_REPLICA_MISMATCH + 1 == tutti::reason_count);
static_assert(TUTTI_STAGE_LOSS == static_cast<int>(tutti::Stage::loss));
static_assert(TUTTI_STAGE_STATE == static_cast<int>(tutti::Stage::state));

}  // namespace

namespace tutti::c {

tutti_status report(tutti_status status, const char* message) noexcept
{
  std::strncpy(last_message, message, sizeof last_message - 1);
  return status;
}

}  // namespace tutti::c

const char* tutti_last_error_message(void) { return last_message; }

const char* tutti_status_name(tutti_status status)
{
  switch (status) {
    case TUTTI_SUCCESS:
      return "success";
    case TUTTI_INVALID_ARGUMENT:
      return "invalid_argument";
    case TUTTI_MPI_ERROR:
      return "mpi_error";
    case TUTTI_DEVICE_ERROR:
      return "device_error";
    case TUTTI_IO_ERROR:
      return "io_error";
    case TUTTI_CHECKPOINT_ERROR:
      return "checkpoint_error";
    case TUTTI_CONFIG_ERROR:
      return "config_error";
    case TUTTI_HALT:
      return "halt";
    case TUTTI_INTERNAL_ERROR:
      return "internal_error";
  }
  return "unknown";
}

const char* tutti_verdict_name(tutti_verdict verdict)
{
  switch (verdict) {
    case TUTTI_COMMIT:
      return "commit";
    case TUTTI_SKIP:
      return "skip";
    case TUTTI_HALTED:
      return "halt";
  }
  return "unknown";
}

const char* tutti_reason_name(tutti_reason reason)
{
  if (reason < 0 || reason > TUTTI_REASON_REPLICA_MISMATCH) return "unknown";
  return tutti::name_of(static_cast<tutti::Reason>(reason)).data();  // of literals
}

const char* tutti_stage_name(tutti_stage stage)
{
  if (stage == TUTTI_STAGE_NONE) return "none";
  if (stage < TUTTI_STAGE_NONE || stage > TUTTI_STAGE_STATE) return "unknown";
  return tutti::name_of(static_cast<tutti::Stage>(stage)).data();
}
