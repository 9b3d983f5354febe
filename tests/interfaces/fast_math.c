/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A code that trains on subnormal numbers and prints the bits of what it gets. Built twice: plain,
 * and compiled and linked with -ffast-math, which makes the whole process flush subnormals to zero.
 * usage: fast_math flushes|keeps: whether this process is meant to flush */
#include <stdlib.h>

#include "check.h"

enum { elements = 5000 };

/* By integers, so that no setting of the process can change the numbers that go in. */
static float subnormal(uint32_t bits)
{
  float value;
  bits &= 0x007fffff;
  memcpy(&value, &bits, sizeof value);
  return value;
}

int main(int argc, char** argv)
{
  OK(tutti_init(&argc, &argv));
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  volatile double tiny = 4e-310;
  uint64_t bits;
  volatile double product = tiny * 0.5;
  double copy = product;
  memcpy(&bits, &copy, sizeof bits);
  CHECK(argc == 2 && (bits == 0) == (strcmp(argv[1], "flushes") == 0));

  tutti_topology topology = NULL;
  tutti_optimizer adam = NULL;
  tutti_run run = NULL;
  int64_t shape[1] = {elements}, p = 0;
  float* values = malloc(elements * sizeof(float));
  double* doubles = malloc(elements * sizeof(double));
  for (int i = 0; i < elements; ++i) values[i] = subnormal((uint32_t)i * 2654435761u);
  OK(tutti_topology_create(MPI_COMM_WORLD, 1, &topology));
  OK(tutti_optimizer_create_adam(topology, "adam", &adam));
  OK(tutti_optimizer_set_number(adam, "learning_rate", 1e-39));
  OK(tutti_optimizer_set_number(adam, "epsilon", 1e-40));
  OK(tutti_parameter_add(adam, "w", TUTTI_FP32, 1, shape, TUTTI_REPLICATED, &p));
  OK(tutti_parameter_set(adam, p, TUTTI_FP32, TUTTI_HOST, values));
  OK(tutti_parameter_bind(adam, p, TUTTI_FP64, TUTTI_HOST, doubles));
  OK(tutti_run_create(topology, &run));
  OK(tutti_run_set_number(run, "window_samples", size));
  OK(tutti_run_add_optimizer(run, adam));
  OK(tutti_run_start(run));
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < elements; ++i)
      values[i] = subnormal((uint32_t)(i + 7 * step + rank) * 2246822519u);
    OK(tutti_gradient_set(adam, p, TUTTI_FP32, TUTTI_HOST, values));
    uint64_t loss_bits = 0x000fffff12345678u; /* subnormal */
    double loss;
    memcpy(&loss, &loss_bits, sizeof loss);
    OK(tutti_window_add(run, loss, 1));
    tutti_outcome outcome;
    OK(tutti_step(run, &outcome));
    uint64_t digest = 0, words[4];
    OK(tutti_run_digest(run, &digest));
    memcpy(&words[0], &outcome.loss, 8);
    memcpy(&words[1], &outcome.grad_norm, 8);
    memcpy(&words[2], &outcome.clip, 8);
    memcpy(&words[3], &doubles[1], 8);
    if (rank == 0)
      printf("step %d: %d %016llx %016llx %016llx %016llx %016llx\n", step, (int)outcome.verdict,
             (unsigned long long)digest, (unsigned long long)words[0], (unsigned long long)words[1],
             (unsigned long long)words[2], (unsigned long long)words[3]);
  }
  OK(tutti_run_destroy(&run));
  OK(tutti_optimizer_destroy(&adam));
  OK(tutti_topology_destroy(&topology));
  free(values);
  free(doubles);
  const int status = worst();
  OK(tutti_finalize());
  return status;
}
