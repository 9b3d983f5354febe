// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every MPI call's status is looked at in one way.
#pragma once

#include <mpi.h>

#include <source_location>

#include "tutti/error.hpp"

namespace tutti {

/// Throws MpiError with the call's text, the rank and the place unless `status` is MPI_SUCCESS. A
/// failing MPI call cannot be voted on, so this error is not collective and the job must end.
void check_mpi(int status, const char* what,
               std::source_location where = std::source_location::current());

}  // namespace tutti
