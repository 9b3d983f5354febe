/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The smallest loop in C: all ranks minimize w^2 / 2, whose gradient is w. */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

/* Every call says what it thinks of its arguments; this program has nothing better to do then. */
#define TRY(call)                                                     \
  do {                                                                \
    if ((call) != TUTTI_SUCCESS) {                                    \
      fprintf(stderr, "%s: %s\n", #call, tutti_last_error_message()); \
      MPI_Abort(MPI_COMM_WORLD, 1);                                   \
    }                                                                 \
  } while (0)

enum { elements = 1000 };

int main(int argc, char** argv)
{
  TRY(tutti_init(&argc, &argv)); /* starts MPI and Kokkos if nobody has */
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  tutti_topology topology;
  TRY(tutti_topology_create(MPI_COMM_WORLD, 1, &topology)); /* all ranks data-parallel */
  tutti_optimizer adam;
  TRY(tutti_optimizer_create_adam(topology, "adam", &adam));
  TRY(tutti_optimizer_set_number(adam, "learning_rate", 0.05));
  const int64_t shape[1] = {elements};
  int64_t w_index;
  TRY(tutti_parameter_add(adam, "w", TUTTI_FP32, 1, shape, TUTTI_REPLICATED, &w_index));
  double w[elements], gradient[elements];
  for (int i = 0; i < elements; ++i) w[i] = 1;
  TRY(tutti_parameter_bind(adam, w_index, TUTTI_FP64, TUTTI_HOST, w)); /* w stays ours */

  tutti_run run;
  TRY(tutti_run_create(topology, &run));
  TRY(tutti_run_set_number(run, "window_samples", 8)); /* of all ranks together */
  TRY(tutti_run_add_optimizer(run, adam));
  TRY(tutti_run_start(run));

  tutti_outcome outcome = {0};
  while (outcome.step < 100) {
    int64_t begin, end;
    double scale;
    TRY(tutti_window_samples(run, 0, &begin, &end)); /* this rank's part of the 8 */
    TRY(tutti_window_scale(run, NULL, &scale));
    const double samples = (double)(end - begin);
    for (int i = 0; i < elements; ++i) gradient[i] = w[i] * samples * scale;
    TRY(tutti_gradient_set(adam, w_index, TUTTI_FP64, TUTTI_HOST, gradient));
    TRY(tutti_window_add(run, 0.5 * w[0] * w[0] * samples, end - begin));
    TRY(tutti_step(run, &outcome)); /* the same on all ranks; the new weights are in w */
    if (rank == 0 && outcome.step % 25 == 0)
      printf("step %3ld: loss %.6f\n", (long)outcome.step, outcome.loss);
  }

  TRY(tutti_run_destroy(&run));
  TRY(tutti_optimizer_destroy(&adam));
  TRY(tutti_topology_destroy(&topology));
  TRY(tutti_finalize());
  return 0;
}
