/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the Fortran module needs beyond tutti.h. Not public: only tutti.f90 calls it. */
#pragma once

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tutti_topology_create on a Fortran communicator. */
TUTTI_EXPORT tutti_status tutti_fortran_topology_create(MPI_Fint communicator, int model_parallel,
                                                        tutti_topology* topology);
/* Refuses an array that is not as long as this rank's piece of the parameter, not contiguous where
 * it must be, or, with `type` >= 0, not of the parameter's type. In an open window's calls the
 * refusal is the window's, too. */
TUTTI_EXPORT tutti_status tutti_fortran_check(tutti_optimizer optimizer, int64_t parameter,
                                              int64_t size, int contiguous, int type,
                                              int in_window);
/* tutti_array_bind with shape, begin (from 1) and extents as Fortran has them, `axes`, `begins` and
 * `ranks` numbers; refuses what is not of one rank or not contiguous. */
TUTTI_EXPORT tutti_status tutti_fortran_array_bind(tutti_run run, const char* name, int type,
                                                   int axes, const int64_t* shape, int begins,
                                                   const int64_t* begin, int ranks,
                                                   const int64_t* extent, int contiguous,
                                                   void* values);
/* Bytes of tutti_outcome, tutti_incident, tutti_update, tutti_callbacks and tutti_loss, so that a
 * test can compare them with the module's. */
TUTTI_EXPORT void tutti_fortran_sizes(int64_t sizes[5]);

#ifdef __cplusplus
}
#endif
