/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the plain C tests check with: a program without Catch2, as users write them. Prints what is
 * wrong; `failures` is the exit status. */
#ifndef TUTTI_TESTS_CHECK_H
#define TUTTI_TESTS_CHECK_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <tutti/tutti.h>

static int failures = 0;
static int rank = 0;
static int size = 1;

static void check(int holds, int line, const char* what)
{
  if (holds) return;
  fprintf(stderr, "[rank %d/%d] line %d FAILED: %s\n  last message: %s\n", rank, size, line, what,
          tutti_last_error_message());
  ++failures;
}
#define CHECK(condition) check((condition) != 0, __LINE__, #condition)
#define OK(call) check((call) == TUTTI_SUCCESS, __LINE__, #call)

/* Collective: equal bytes on all ranks? */
static inline int same_bytes(const void* data, size_t bytes)
{
  uint64_t hash = 1469598103934665603u;
  const unsigned char* byte = (const unsigned char*)data;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 1099511628211u;
  uint64_t range[2] = {hash, ~hash};
  MPI_Allreduce(MPI_IN_PLACE, range, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
  return range[0] == ~range[1];
}
static inline int same_text(const char* text) { return same_bytes(text, strlen(text)); }

/* Exit status for all ranks. */
static inline int worst(void)
{
  int all = failures;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return all > 0 ? 1 : 0;
}

#endif
