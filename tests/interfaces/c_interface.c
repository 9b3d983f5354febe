/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The C interface over real ranks, from C: what goes in, what comes out, and that a failure of one
 * rank has one outcome on all. usage: c_interface DIRECTORY, an empty one that all ranks see. */
#include <math.h>
#include <stdlib.h>

#include "check.h"

/* A job with one Adam: "w" fp32 with weights bound in fp64, "half" fp16 cut over the model axis. */
typedef struct Job {
  tutti_topology topology;
  tutti_optimizer adam;
  tutti_run run;
  int64_t w, half, half_elements;
  double* weights; /* bound to w */
} Job;

enum { w_elements = 5000, half_rows = 6, half_columns = 1000 };

static void declare(Job* job, int model_parallel)
{
  const int64_t w_shape[1] = {w_elements};
  const int64_t half_shape[2] = {half_rows, half_columns};
  OK(tutti_topology_create(MPI_COMM_WORLD, model_parallel, &job->topology));
  OK(tutti_optimizer_create_adam(job->topology, "adam", &job->adam));
  OK(tutti_optimizer_set_number(job->adam, "learning_rate", 0.01));
  OK(tutti_parameter_add(job->adam, "w", TUTTI_FP32, 1, w_shape, TUTTI_REPLICATED, &job->w));
  OK(tutti_parameter_add(job->adam, "half", TUTTI_FP16, 2, half_shape, 1, &job->half));
  int64_t begin = 0, extent = 0;
  OK(tutti_parameter_piece(job->adam, job->half, &begin, &extent, &job->half_elements));
  CHECK(job->half_elements == half_rows * extent);
  job->weights = malloc(w_elements * sizeof(double));
  for (int i = 0; i < w_elements; ++i) job->weights[i] = rank == 0 ? 1 + i * 1e-3 : -1e9;
  OK(tutti_parameter_bind(job->adam, job->w, TUTTI_FP64, TUTTI_HOST, job->weights));
  float* initial = malloc((size_t)job->half_elements * sizeof(float));
  for (int64_t i = 0; i < job->half_elements; ++i) {
    const int64_t row = i / extent, column = begin + i % extent;
    initial[i] = (float)(row * half_columns + column) / 1024;
  }
  OK(tutti_parameter_set(job->adam, job->half, TUTTI_FP32, TUTTI_HOST, initial));
  free(initial);
  OK(tutti_run_create(job->topology, &job->run));
  OK(tutti_run_set_number(job->run, "window_samples", 8));
  OK(tutti_run_set_text(job->run, "configuration", "{\"job\":1}"));
  OK(tutti_run_add_optimizer(job->run, job->adam));
}

static void start(Job* job, int model_parallel)
{
  declare(job, model_parallel);
  OK(tutti_run_start(job->run));
}

static void end(Job* job)
{
  OK(tutti_run_destroy(&job->run));
  OK(tutti_optimizer_destroy(&job->adam));
  OK(tutti_topology_destroy(&job->topology));
  CHECK(job->run == NULL && job->adam == NULL && job->topology == NULL);
  free(job->weights);
}

/* The gradients of sum(w) and sum(half) over this rank's samples, times the scale. */
static void give_gradients(Job* job)
{
  int64_t begin = 0, last = 0;
  double scale = 0;
  OK(tutti_window_samples(job->run, 0, &begin, &last));
  OK(tutti_window_scale(job->run, NULL, &scale));
  const double gradient = (double)(last - begin) * scale;
  double* values = malloc(half_rows * half_columns * sizeof(double)); /* as long as the longer */
  for (int i = 0; i < half_rows * half_columns; ++i) values[i] = gradient;
  OK(tutti_gradient_set(job->adam, job->w, TUTTI_FP64, TUTTI_HOST, values));
  OK(tutti_gradient_set(job->adam, job->half, TUTTI_FP64, TUTTI_HOST, values));
  free(values);
}

static tutti_status step(Job* job, tutti_outcome* outcome)
{
  int64_t begin = 0, last = 0;
  OK(tutti_window_samples(job->run, 0, &begin, &last));
  OK(tutti_window_add(job->run, 2.0 * (double)(last - begin), last - begin));
  return tutti_step(job->run, outcome);
}

static void commits(int model_parallel)
{
  Job job;
  start(&job, model_parallel);
  CHECK(job.weights[7] == (double)(1 + 7 * 1e-3f)); /* rank 0's, through fp32 */
  CHECK(same_bytes(job.weights, w_elements * sizeof(double)));
  tutti_outcome outcome;
  for (int i = 0; i < 3; ++i) {
    give_gradients(&job);
    OK(step(&job, &outcome));
    CHECK(outcome.verdict == TUTTI_COMMIT && outcome.step == i + 1 && outcome.attempt == i + 1);
  }
  CHECK(outcome.samples == 8 && outcome.window_begin == 16 && outcome.window_end == 24);
  CHECK(outcome.loss == 2 && outcome.loss_scale == 1 && outcome.clip == 1);
  /* The mean gradient is 1 in each element. */
  CHECK(fabs(outcome.grad_norm - sqrt(w_elements + half_rows * half_columns)) < 1e-9);
  CHECK(outcome.rank == -1 && outcome.nonfinite == 0 && outcome.failure_code == 0);
  CHECK(same_bytes(&outcome, sizeof outcome));
  const char* message = NULL;
  OK(tutti_step_message(job.run, &message));
  CHECK(strcmp(message, "") == 0);
  tutti_incident incident;
  OK(tutti_step_incident(job.run, &incident));
  CHECK(incident.stage == TUTTI_STAGE_NONE && incident.rank == -1 && incident.value == 0);

  /* Adam with a constant gradient moves by the learning rate. */
  CHECK(fabs(job.weights[7] - (1 + 7 * 1e-3 - 0.03)) < 1e-5);
  const void* values = NULL;
  OK(tutti_parameter_values(job.adam, job.w, &values));
  double* copy = malloc(w_elements * sizeof(double));
  OK(tutti_parameter_get(job.adam, job.w, TUTTI_FP64, TUTTI_HOST, copy));
  int wrong = 0;
  for (int i = 0; i < w_elements; ++i)
    wrong += job.weights[i] != (double)((const float*)values)[i] || copy[i] != job.weights[i];
  CHECK(wrong == 0);
  float* half = malloc((size_t)job.half_elements * sizeof(float));
  OK(tutti_parameter_get(job.adam, job.half, TUTTI_FP32, TUTTI_HOST, half));
  int64_t begin = 0;
  OK(tutti_parameter_piece(job.adam, job.half, &begin, NULL, NULL));
  CHECK(fabs(half[0] - ((double)begin / 1024 - 0.03)) < 1e-3);
  free(half);
  free(copy);
  int64_t at_step = 0, attempt = 0, samples = 0;
  OK(tutti_run_position(job.run, &at_step, &attempt, &samples));
  CHECK(at_step == 3 && attempt == 3 && samples == 24);
  end(&job);
}

static void one_rank_is_nonfinite(int model_parallel)
{
  Job job;
  start(&job, model_parallel);
  const int bad_rank = size - 1;
  uint64_t before = 0, after = 0;
  OK(tutti_run_digest(job.run, &before));
  double bound_before = job.weights[4321];
  give_gradients(&job);
  if (rank == bad_rank) { /* without a copy */
    void* gradient = NULL;
    OK(tutti_gradient_values(job.adam, job.w, &gradient));
    for (int i = 0; i < w_elements; ++i) ((float*)gradient)[i] = 1;
    ((float*)gradient)[4321] = -INFINITY;
  }
  tutti_outcome outcome;
  OK(step(&job, &outcome));
  CHECK(outcome.verdict == TUTTI_SKIP && outcome.reason == TUTTI_REASON_GRADIENT);
  CHECK(outcome.step == 0 && outcome.attempt == 1 && outcome.rank == bad_rank);
  CHECK(outcome.nonfinite >= 1 && isnan(outcome.grad_norm));
  CHECK(same_bytes(&outcome, sizeof outcome));
  tutti_incident incident;
  OK(tutti_step_incident(job.run, &incident));
  CHECK(same_bytes(&incident, sizeof incident));
  CHECK(incident.stage == TUTTI_STAGE_MICRO_BATCH && incident.rank == bad_rank);
  CHECK(incident.optimizer == 0 && incident.parameter == job.w && incident.element == 4321);
  CHECK(incident.micro == 0 && incident.count == 1 && incident.value == -INFINITY);
  const char* message = NULL;
  OK(tutti_step_message(job.run, &message));
  CHECK(strstr(message, "-inf in adam/w element 4321 of rank") != NULL);
  CHECK(same_text(message));
  const char* json = NULL;
  OK(tutti_step_incident_json(job.run, &json));
  CHECK(strstr(json, "\"parameter\": \"w\"") != NULL && strstr(json, "\"element\": 4321") != NULL);
  CHECK(same_text(json));
  OK(tutti_run_digest(job.run, &after));
  CHECK(before == after && job.weights[4321] == bound_before);

  /* The same samples come again, and now all is well. */
  int64_t begin = -1, last = -1;
  OK(tutti_window_samples(job.run, 0, &begin, &last));
  CHECK(rank != 0 || begin == 0);
  give_gradients(&job);
  OK(step(&job, &outcome));
  CHECK(outcome.verdict == TUTTI_COMMIT && outcome.step == 1 && outcome.window_begin == 0);
  OK(tutti_step_incident_json(job.run, &json));
  CHECK(strcmp(json, "") == 0);
  end(&job);
}

/* A parameter without gradients on all ranks stands still; one that only rank 0 has moves. */
static void absent_gradients(void)
{
  Job job;
  start(&job, 1);
  float before[1], *half = malloc((size_t)job.half_elements * sizeof(float));
  OK(tutti_parameter_get(job.adam, job.half, TUTTI_FP32, TUTTI_HOST, half));
  before[0] = half[5];
  if (rank == 0) {
    double* values = malloc(w_elements * sizeof(double));
    for (int i = 0; i < w_elements; ++i) values[i] = 1;
    OK(tutti_gradient_set(job.adam, job.w, TUTTI_FP64, TUTTI_HOST, values));
    free(values);
    OK(tutti_window_add(job.run, 1, 8));
  } /* the others add nothing at all */
  tutti_outcome outcome;
  OK(tutti_step(job.run, &outcome));
  CHECK(outcome.verdict == TUTTI_COMMIT && outcome.samples == 8);
  OK(tutti_parameter_get(job.adam, job.half, TUTTI_FP32, TUTTI_HOST, half));
  CHECK(half[5] == before[0]);
  CHECK(fabs(job.weights[0] - 0.99) < 1e-6);
  free(half);
  end(&job);
}

static void failures_of_one_rank_halt_all(void)
{
  Job job;
  tutti_outcome outcome;
  const int bad_rank = size - 1;

  start(&job, 1);
  give_gradients(&job);
  if (rank == bad_rank) OK(tutti_window_fail(job.run, 42, "the solver diverged"));
  CHECK(step(&job, &outcome) == TUTTI_HALT);
  CHECK(outcome.verdict == TUTTI_HALTED && outcome.reason == TUTTI_REASON_WINDOW_FAILED);
  CHECK(outcome.rank == bad_rank && outcome.failure_code == 42);
  CHECK(same_bytes(&outcome, sizeof outcome) && same_text(tutti_last_error_message()));
  CHECK(strstr(tutti_last_error_message(), "the solver diverged") != NULL);
  CHECK(tutti_step(job.run, &outcome) == TUTTI_INVALID_ARGUMENT); /* it has ended */
  CHECK(tutti_checkpoint_save(job.run, "nowhere", NULL) == TUTTI_INVALID_ARGUMENT);
  end(&job);

  /* A call that breaks its contract on one rank is that rank's failure, looked at or not. */
  start(&job, 1);
  give_gradients(&job);
  if (rank == bad_rank) {
    const float one = 1;
    CHECK(tutti_gradient_set(job.adam, 17, TUTTI_FP32, TUTTI_HOST, &one) == TUTTI_INVALID_ARGUMENT);
  }
  CHECK(step(&job, NULL) == TUTTI_HALT);
  CHECK(strstr(tutti_last_error_message(), "there is no parameter 17") != NULL);
  CHECK(same_text(tutti_last_error_message()));
  end(&job);

  start(&job, 1);
  OK(tutti_window_add(job.run, 0, 0));
  CHECK(tutti_window_add(job.run, 0, 0) == TUTTI_INVALID_ARGUMENT); /* one too many */
  CHECK(tutti_step(job.run, NULL) == TUTTI_HALT);
  end(&job);
}

static void disagreement_is_refused_at_the_start(void)
{
  for (int kind = 0; kind < 4; ++kind) {
    if (size == 1 && kind < 3) continue;
    Job job;
    declare(&job, 1);
    if (kind == 0) OK(tutti_run_set_number(job.run, "max_norm", 1 + (rank == size - 1)));
    if (kind == 1) OK(tutti_optimizer_set_number(job.adam, "beta1", rank == 0 ? 0.9 : 0.8));
    if (kind == 2) OK(tutti_run_set_text(job.run, "configuration", rank == 0 ? "{\"a\":1}" : "{}"));
    if (kind == 3 && rank == size - 1) OK(tutti_run_set_text(job.run, "schedule", "linear"));
    const tutti_status status = tutti_run_start(job.run);
    CHECK(status == (kind == 3 ? TUTTI_CONFIG_ERROR : TUTTI_INVALID_ARGUMENT));
    CHECK(same_text(tutti_last_error_message()));
    CHECK(tutti_step(job.run, NULL) == TUTTI_INVALID_ARGUMENT);
    end(&job);
  }
}

static void stop_request(void)
{
  Job job;
  start(&job, 1);
  tutti_outcome outcome;
  give_gradients(&job);
  OK(step(&job, &outcome));
  CHECK(outcome.stop_requested == 0);
  if (rank == size - 1) OK(tutti_run_request_stop(job.run));
  give_gradients(&job);
  OK(step(&job, &outcome));
  CHECK(outcome.stop_requested == 1 && outcome.verdict == TUTTI_COMMIT);
  give_gradients(&job);
  OK(step(&job, &outcome));
  CHECK(outcome.stop_requested == 0);
  end(&job);
}

static void checkpoints(const char* directory, int model_parallel)
{
  Job job;
  tutti_outcome outcome;
  const char *file = NULL, *text = NULL;
  char path[600], saved[700];
  snprintf(path, sizeof path, "%s/adam-%d", directory, model_parallel);

  start(&job, model_parallel);
  OK(tutti_checkpoint_latest(job.run, path, &file));
  CHECK(file == NULL);
  for (int i = 0; i < 2; ++i) {
    give_gradients(&job);
    OK(step(&job, &outcome));
  }
  /* Only some ranks have opened the next window: refused by all, and nothing is lost. */
  if (rank == size - 1) OK(tutti_window_scale(job.run, NULL, NULL));
  CHECK(tutti_checkpoint_save(job.run, path, &file) == TUTTI_INVALID_ARGUMENT);
  CHECK(same_text(tutti_last_error_message()));
  give_gradients(&job);
  OK(step(&job, &outcome));
  CHECK(outcome.step == 3);
  OK(tutti_checkpoint_save(job.run, path, &file));
  snprintf(saved, sizeof saved, "%s/step-000000000003.h5", path);
  CHECK(strcmp(file, saved) == 0);
  uint64_t digest = 0, later = 0, restored = 0;
  OK(tutti_run_digest(job.run, &digest));
  double* weights = malloc(w_elements * sizeof(double));
  memcpy(weights, job.weights, w_elements * sizeof(double));
  give_gradients(&job);
  OK(step(&job, &outcome));
  OK(tutti_run_digest(job.run, &later));
  CHECK(later != digest);
  end(&job);

  /* Another process would do the same: a new job of another degree. */
  start(&job, size % 2 == 0 ? 3 - model_parallel : 1);
  OK(tutti_checkpoint_latest(job.run, path, &file));
  CHECK(file != NULL && strcmp(file, saved) == 0);
  OK(tutti_checkpoint_configuration(job.run, saved, &text));
  CHECK(strcmp(text, "{\"job\":1}") == 0);
  OK(tutti_checkpoint_restore(job.run, saved));
  OK(tutti_run_digest(job.run, &restored));
  CHECK(restored == digest);
  CHECK(memcmp(weights, job.weights, w_elements * sizeof(double)) == 0);
  int64_t at_step = 0, attempt = 0;
  OK(tutti_run_position(job.run, &at_step, &attempt, NULL));
  CHECK(at_step == 3 && attempt == 3);
  give_gradients(&job);
  OK(step(&job, &outcome));
  CHECK(outcome.step == 4 && outcome.window_begin == 24);
  OK(tutti_run_digest(job.run, &restored));
  CHECK(restored == later);

  /* A newer one that is damaged is passed over by all. */
  OK(tutti_checkpoint_save(job.run, path, &file));
  if (rank == 0) {
    FILE* newest = fopen(file, "r+b");
    CHECK(newest != NULL && fseek(newest, -1000, SEEK_END) == 0);
    const char rubbish[900] = {'x'};
    CHECK(fwrite(rubbish, 1, sizeof rubbish, newest) == sizeof rubbish && fclose(newest) == 0);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  OK(tutti_checkpoint_restore_latest(job.run, path, &file));
  CHECK(file != NULL && strcmp(file, saved) == 0);
  OK(tutti_run_digest(job.run, &restored));
  CHECK(restored == digest);
  OK(tutti_checkpoint_restore_latest(job.run, "/no/such/directory", &file));
  CHECK(file == NULL);

  CHECK(tutti_checkpoint_restore(job.run, "no such file") == TUTTI_IO_ERROR);
  CHECK(same_text(tutti_last_error_message()));
  CHECK(tutti_checkpoint_restore(job.run, rank == 0 ? saved : NULL) ==
        (size == 1 ? TUTTI_SUCCESS : TUTTI_INVALID_ARGUMENT));
  free(weights);
  end(&job);
}

/* --- an optimizer of the code's own ------------------------------------------------------------
 */

/* SGD with momentum on a replicated parameter: all ranks hold all of it, as many codes do. */
enum { sgd_elements = 9001 };
typedef struct Sgd {
  float weights[sgd_elements], momentum[sgd_elements], gradient[sgd_elements];
  float staged_weights[sgd_elements], staged_momentum[sgd_elements];
  int fail_stage, poison, published, discarded, restored, opened;
} Sgd;

static int sgd_open(void* context) { return ((Sgd*)context)->opened++, 0; }
static int sgd_exchange(void* context)
{
  Sgd* sgd = context;
  return MPI_Allreduce(MPI_IN_PLACE, sgd->gradient, sgd_elements, MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
}
static int sgd_inspect(void* context, tutti_inspection inspection)
{
  Sgd* sgd = context;
  return tutti_inspection_add(inspection, 0, 0, sgd_elements, rank == 0 ? TUTTI_SUM : TUTTI_COPY,
                              TUTTI_FP32, TUTTI_HOST, sgd->gradient);
}
static int sgd_stage(void* context, const tutti_update* update)
{
  Sgd* sgd = context;
  if (sgd->fail_stage) return 7;
  CHECK(update->has_gradient[0] == 1);
  const float factor = (float)update->grad_factor;
  const float rate = (float)(0.5 * update->learning_rate_factor);
  for (int i = 0; i < sgd_elements; ++i) {
    sgd->staged_momentum[i] = 0.5f * sgd->momentum[i] + factor * sgd->gradient[i];
    sgd->staged_weights[i] = sgd->weights[i] - rate * sgd->staged_momentum[i];
  }
  if (sgd->poison) sgd->staged_weights[1234] = NAN;
  return 0;
}
static int sgd_confirm(void* context, tutti_inspection inspection)
{
  Sgd* sgd = context;
  return tutti_inspection_add(inspection, 0, 0, sgd_elements, TUTTI_SUM, TUTTI_FP32, TUTTI_HOST,
                              sgd->staged_weights);
}
static void sgd_publish(void* context)
{
  Sgd* sgd = context;
  memcpy(sgd->weights, sgd->staged_weights, sizeof sgd->weights);
  memcpy(sgd->momentum, sgd->staged_momentum, sizeof sgd->momentum);
  ++sgd->published;
}
static void sgd_discard(void* context) { ++((Sgd*)context)->discarded; }
static void sgd_restored(void* context) { ++((Sgd*)context)->restored; }

typedef struct SgdJob {
  tutti_topology topology;
  tutti_optimizer optimizer;
  tutti_run run;
  Sgd* sgd;
} SgdJob;

static void sgd_start(SgdJob* job)
{
  const int64_t shape[1] = {sgd_elements};
  int64_t parameter = 0;
  job->sgd = calloc(1, sizeof(Sgd));
  const tutti_callbacks callbacks = {job->sgd,    sgd_open,    NULL,        sgd_exchange,
                                     sgd_inspect, sgd_stage,   NULL,        sgd_confirm,
                                     sgd_publish, sgd_discard, sgd_restored};
  OK(tutti_topology_create(MPI_COMM_WORLD, 1, &job->topology));
  OK(tutti_optimizer_create_callbacks(job->topology, "sgd", &callbacks, &job->optimizer));
  OK(tutti_parameter_add(job->optimizer, "w", TUTTI_FP32, 1, shape, TUTTI_REPLICATED, &parameter));
  OK(tutti_state_bind(job->optimizer, parameter, "weights", job->sgd->weights));
  OK(tutti_state_bind(job->optimizer, parameter, "momentum", job->sgd->momentum));
  OK(tutti_run_create(job->topology, &job->run));
  OK(tutti_run_set_number(job->run, "window_samples", size));
  OK(tutti_run_set_number(job->run, "max_norm", 10));
  OK(tutti_run_add_optimizer(job->run, job->optimizer));
  OK(tutti_run_start(job->run));
  for (int i = 0; i < sgd_elements; ++i) job->sgd->weights[i] = 1 + (float)(i % 10);
}

static void sgd_end(SgdJob* job)
{
  OK(tutti_run_destroy(&job->run));
  OK(tutti_optimizer_destroy(&job->optimizer));
  OK(tutti_topology_destroy(&job->topology));
  free(job->sgd);
}

static tutti_status sgd_step(SgdJob* job, tutti_outcome* outcome)
{
  double scale = 0;
  OK(tutti_window_scale(job->run, NULL, &scale));
  for (int i = 0; i < sgd_elements; ++i) /* of the loss w^2 / 2, one sample a rank */
    job->sgd->gradient[i] = job->sgd->weights[i] * (float)scale;
  if (outcome != NULL && outcome->nonfinite == -1 && rank == size - 1) job->sgd->gradient[77] = NAN;
  OK(tutti_window_add(job->run, 1, 1));
  return tutti_step(job->run, outcome);
}

static void own_optimizer(const char* directory)
{
  SgdJob job;
  tutti_outcome outcome = {0};
  sgd_start(&job);
  OK(sgd_step(&job, &outcome));
  CHECK(outcome.verdict == TUTTI_COMMIT && job.sgd->published == 1 && job.sgd->opened == 1);
  double squares = 0; /* the norm is that of the mean gradient, counted once */
  for (int i = 0; i < sgd_elements; ++i) squares += (1.0 + i % 10) * (1.0 + i % 10);
  CHECK(fabs(outcome.grad_norm - sqrt(squares)) < 1e-3);
  CHECK(fabs(outcome.clip - 10 / outcome.grad_norm) < 1e-6);
  CHECK(fabs(job.sgd->weights[5] - (6 - 0.5 * 6 * outcome.clip)) < 1e-4);
  CHECK(same_bytes(job.sgd->weights, sizeof job.sgd->weights));

  /* A nonfinite gradient on one rank; the staged update on another; both leave all as it was. */
  uint64_t before = 0, after = 0;
  OK(tutti_run_digest(job.run, &before));
  outcome.nonfinite = -1;
  OK(sgd_step(&job, &outcome));
  CHECK(outcome.verdict == TUTTI_SKIP && outcome.reason == TUTTI_REASON_GRADIENT);
  CHECK(job.sgd->published == 1 && job.sgd->discarded == 0); /* nothing was staged */
  tutti_incident incident;
  OK(tutti_step_incident(job.run, &incident));
  CHECK(incident.stage == TUTTI_STAGE_EXCHANGE && incident.element == 77 && incident.rank == 0);
  CHECK(same_bytes(&incident, sizeof incident) && isnan(incident.value));
  job.sgd->poison = rank == size - 1;
  OK(sgd_step(&job, &outcome));
  CHECK(outcome.verdict == TUTTI_SKIP && outcome.reason == TUTTI_REASON_UPDATE);
  CHECK(job.sgd->discarded == 1);
  OK(tutti_step_incident(job.run, &incident));
  CHECK(incident.stage == TUTTI_STAGE_UPDATE && incident.element == 1234);
  CHECK(incident.rank == size - 1);
  OK(tutti_run_digest(job.run, &after));
  CHECK(before == after && job.sgd->published == 1);
  job.sgd->poison = 0;

  /* Its state is checkpointed and comes back on all ranks. */
  OK(sgd_step(&job, &outcome));
  CHECK(outcome.verdict == TUTTI_COMMIT && outcome.step == 2);
  OK(tutti_run_digest(job.run, &before));
  const char* file = NULL;
  char path[600], saved[700];
  snprintf(path, sizeof path, "%s/sgd", directory);
  OK(tutti_checkpoint_save(job.run, path, &file));
  snprintf(saved, sizeof saved, "%s", file);
  Sgd kept = *job.sgd;
  OK(sgd_step(&job, &outcome));
  CHECK(memcmp(kept.weights, job.sgd->weights, sizeof kept.weights) != 0);
  OK(tutti_checkpoint_restore(job.run, saved));
  CHECK(job.sgd->restored == 1);
  CHECK(memcmp(kept.weights, job.sgd->weights, sizeof kept.weights) == 0);
  CHECK(memcmp(kept.momentum, job.sgd->momentum, sizeof kept.momentum) == 0);
  OK(tutti_run_digest(job.run, &after));
  CHECK(before == after);

  /* A callback's failure on one rank is a halt on all, before anything was changed. */
  job.sgd->fail_stage = rank == size - 1;
  CHECK(sgd_step(&job, &outcome) == TUTTI_HALT);
  CHECK(outcome.reason == TUTTI_REASON_UPDATE_FAILED && outcome.failure_code == 7);
  CHECK(outcome.rank == size - 1 && same_text(tutti_last_error_message()));
  CHECK(strstr(tutti_last_error_message(), "callback stage of optimizer 'sgd'") != NULL);
  CHECK(memcmp(kept.weights, job.sgd->weights, sizeof kept.weights) == 0);
  sgd_end(&job);
}

/* --- a field of the code's own, and saves in the background ------------------------------------
 */

enum { field_rows = 7, field_columns = 40 };

typedef struct Field {
  int64_t begin, rows; /* of this rank */
  double values[field_rows * field_columns];
  int64_t time;
} Field;

static double field_at(int64_t row, int64_t column, int64_t time)
{
  return (double)(row * 1000 + column) + 0.25 * (double)time;
}

static void field_set(Field* field, int64_t time)
{
  field->time = time;
  for (int64_t i = 0; i < field->rows * field_columns; ++i)
    field->values[i] = field_at(field->begin + i / field_columns, i % field_columns, time);
}

static int field_is(const Field* field, int64_t time)
{
  int wrong = field->time != time;
  for (int64_t i = 0; i < field->rows * field_columns; ++i)
    wrong +=
        field->values[i] != field_at(field->begin + i / field_columns, i % field_columns, time);
  return wrong == 0;
}

/* This rank holds `rows` rows from `begin` on. */
static void field_bind(Field* field, tutti_run run, int64_t begin, int64_t rows)
{
  const int64_t shape[2] = {field_rows, field_columns};
  const int64_t first[2] = {begin, 0}, extent[2] = {rows, field_columns};
  field->begin = begin;
  field->rows = rows;
  OK(tutti_array_bind(run, "field", TUTTI_FP64, 2, shape, first, extent, field->values));
  OK(tutti_scalar_bind(run, "time", TUTTI_INT64, &field->time));
}

static void update(Job* job, tutti_outcome* outcome)
{
  give_gradients(job);
  OK(step(job, outcome));
}

static void background_saves(const char* directory)
{
  Job job;
  Field field;
  tutti_outcome outcome;
  const char* file = NULL;
  char path[600], saved[700];
  uint64_t digest = 0, again = 0;
  snprintf(path, sizeof path, "%s/background", directory);
  const int64_t cut = field_rows * rank / size, next = field_rows * (rank + 1) / size;

  start(&job, 1);
  const int64_t shape[1] = {4}, begin[1] = {2}, extent[1] = {3};
  CHECK(tutti_array_bind(job.run, "x", TUTTI_FP64, 1, shape, begin, extent, &field) ==
        TUTTI_INVALID_ARGUMENT); /* leaves the array */
  CHECK(tutti_array_bind(job.run, "x", TUTTI_FP16, 1, shape, shape, shape, &field) ==
        TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_array_bind(job.run, "x", TUTTI_FP32, 1, NULL, begin, extent, &field) ==
        TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_scalar_bind(job.run, "x", TUTTI_INT32, NULL) == TUTTI_INVALID_ARGUMENT);
  field_bind(&field, job.run, cut, next - cut);
  OK(tutti_checkpoint_finish(job.run, &file));
  CHECK(file == NULL); /* there is none */

  update(&job, &outcome);
  field_set(&field, 1);
  OK(tutti_run_digest(job.run, &digest));
  OK(tutti_checkpoint_start(job.run, path));
  field_set(&field, 2); /* it has been copied */
  CHECK(tutti_checkpoint_start(job.run, path) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_checkpoint_save(job.run, path, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_checkpoint_restore(job.run, path) == TUTTI_INVALID_ARGUMENT);
  CHECK(strstr(tutti_last_error_message(), "tutti_checkpoint_finish") != NULL);
  do {
    update(&job, &outcome);
    CHECK(outcome.save != TUTTI_SAVE_FAILED);
  } while (outcome.save == TUTTI_SAVE_PENDING && outcome.step < 10000);
  CHECK(outcome.save == TUTTI_SAVE_DONE && same_bytes(&outcome, sizeof outcome));
  give_gradients(&job);
  CHECK(tutti_checkpoint_finish(job.run, &file) == TUTTI_INVALID_ARGUMENT); /* in a window */
  OK(step(&job, &outcome));
  CHECK(outcome.save == TUTTI_SAVE_NONE);
  OK(tutti_checkpoint_finish(job.run, &file));
  CHECK(file != NULL && strstr(file, "step-000000000001.h5") != NULL);
  snprintf(saved, sizeof saved, "%s", file);

  OK(tutti_checkpoint_restore(job.run, saved));
  CHECK(field_is(&field, 1));
  OK(tutti_run_digest(job.run, &again));
  CHECK(again == digest);
  field_bind(&field, job.run, 0, field_rows); /* now all of it on each rank */
  field_set(&field, 9);
  OK(tutti_checkpoint_restore(job.run, saved));
  CHECK(field_is(&field, 1));
  CHECK(size == 1 ||
        tutti_checkpoint_save(job.run, path, NULL) != TUTTI_SUCCESS); /* they overlap */

  /* Without waiting for the outcome's word; and a run that ends first. */
  field_bind(&field, job.run, cut, next - cut);
  update(&job, &outcome);
  field_set(&field, 3);
  OK(tutti_checkpoint_start(job.run, path));
  OK(tutti_checkpoint_finish(job.run, &file));
  CHECK(file != NULL && strstr(file, "step-000000000002.h5") != NULL);
  update(&job, &outcome);
  CHECK(outcome.save == TUTTI_SAVE_NONE);
  OK(tutti_checkpoint_start(job.run, path));
  end(&job);
  start(&job, 1);
  OK(tutti_checkpoint_latest(job.run, path, &file));
  CHECK(file != NULL && strstr(file, "step-000000000003.h5") != NULL);

  /* A save that cannot be made: the same word on all ranks, and the run goes on. */
  CHECK(tutti_checkpoint_start(job.run, "/proc/none") == TUTTI_IO_ERROR);
  CHECK(same_text(tutti_last_error_message()));
  update(&job, &outcome);
  CHECK(outcome.verdict == TUTTI_COMMIT && outcome.save == TUTTI_SAVE_NONE);

  /* Only the weights. */
  OK(tutti_checkpoint_restore_weights(job.run, saved));
  OK(tutti_run_digest(job.run, &again));
  CHECK(again != digest);
  int64_t at_step = 0;
  OK(tutti_run_position(job.run, &at_step, NULL, NULL));
  CHECK(at_step == 1 && fabs(job.weights[7] - (1 + 7 * 1e-3 - 0.01)) < 1e-5);
  end(&job);
}

/* --- a rank that does not come -----------------------------------------------------------------
 */

typedef struct Seen {
  int stalled, rank, calls;
} Seen;

static void see(void* context, const tutti_loss* loss)
{
  Seen* seen = context;
  seen->stalled = loss->stalled;
  seen->rank = loss->rank;
  ++seen->calls;
}

static void watched(void)
{
  Job job;
  Seen seen = {0, -1, 0};
  tutti_outcome outcome;
  int running = -1;
  const char* description = NULL;
  declare(&job, 1);
  CHECK(tutti_run_watch(job.run, -1, see, &seen) == TUTTI_CONFIG_ERROR);
  CHECK(tutti_progress(job.run) == TUTTI_INVALID_ARGUMENT); /* not started */
  OK(tutti_run_watch(job.run, 0.5, see, &seen));
  char fault[80]; /* far longer than the watchdog's patience */
  snprintf(fault, sizeof fault, "stall:step=1,rank=%d,phase=stage,seconds=4", size - 1);
  OK(tutti_run_set_text(job.run, "fault", fault));
  OK(tutti_run_start(job.run));
  CHECK(tutti_run_watch(job.run, 1, NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  OK(tutti_run_watched(job.run, &running, &description));
  CHECK(running == (size > 1) && strstr(description, "watchdog") != NULL);
  OK(tutti_progress(job.run));
  for (int i = 0; i < (size > 1 ? 2 : 1); ++i) update(&job, &outcome);
  MPI_Allreduce(MPI_IN_PLACE, &seen, 3, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  CHECK(size == 1 || (seen.calls == 1 && seen.rank == size - 1 && seen.stalled == 1));
  end(&job);
}

/* --- a bad window, computed again ---------------------------------------------------------------
 */

typedef struct Again {
  Job* job;
  int calls, code;
} Again;

/* What give_gradients and step do, from positions. */
static int compute_again(void* context, int64_t begin, int64_t end, double scale, double* loss_sum)
{
  Again* again = context;
  Job* job = again->job;
  ++again->calls;
  if (begin == end) return again->code;
  double* values = malloc(half_rows * half_columns * sizeof(double));
  for (int i = 0; i < half_rows * half_columns; ++i) values[i] = (double)(end - begin) * scale;
  tutti_status status = tutti_gradient_set(job->adam, job->w, TUTTI_FP64, TUTTI_HOST, values);
  if (status == TUTTI_SUCCESS)
    status = tutti_gradient_set(job->adam, job->half, TUTTI_FP64, TUTTI_HOST, values);
  free(values);
  *loss_sum = 2.0 * (double)(end - begin);
  return status != TUTTI_SUCCESS ? 99 : again->code;
}

static void recomputed(int model_parallel, const char* permanent, int code, const char* expected)
{
  Job job;
  Again again = {&job, 0, code};
  tutti_outcome outcome;
  const char* json = NULL;
  declare(&job, model_parallel);
  OK(tutti_run_recompute(job.run, compute_again, "this compiler", &again));
  char fault[80];
  snprintf(fault, sizeof fault, "nonfinite:attempt=2,rank=0,value=inf,permanent=%s", permanent);
  OK(tutti_run_set_text(job.run, "fault", fault));
  OK(tutti_run_start(job.run));
  CHECK(tutti_run_recompute(job.run, NULL, NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  for (int i = 0; i < 3; ++i) {
    give_gradients(&job);
    OK(step(&job, &outcome));
    CHECK(outcome.verdict == (i == 1 ? TUTTI_SKIP : TUTTI_COMMIT));
    if (i != 1) continue;
    OK(tutti_step_incident_json(job.run, &json));
    CHECK(same_text(json));
    CHECK(strstr(json, expected) != NULL);
    CHECK(again.calls == (rank < 2 * model_parallel ? 1 : 0));
  }
  CHECK(outcome.step == 2);
  end(&job);
}

static void contracts(void)
{
  tutti_topology topology = NULL;
  tutti_optimizer adam = NULL;
  tutti_run run = NULL;
  int64_t index = -1;
  const int64_t shape[1] = {3}, empty[1] = {0};
  const float three[3] = {1, 2, 3};
  CHECK(tutti_topology_create(MPI_COMM_NULL, 1, &topology) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_topology_create(MPI_COMM_WORLD, size + 1, &topology) == TUTTI_INVALID_ARGUMENT);
  CHECK(same_text(tutti_last_error_message()));
  CHECK(topology == NULL);
  OK(tutti_topology_create(MPI_COMM_WORLD, size, &topology));
  int d = -1, D = -1, m = -1, M = -1;
  OK(tutti_topology_ranks(topology, &d, &D, &m, &M));
  CHECK(d == 0 && D == 1 && m == rank && M == size);
  CHECK(tutti_optimizer_create_adam(topology, "", &adam) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_optimizer_create_adam(NULL, "a", &adam) == TUTTI_INVALID_ARGUMENT);
  CHECK(strstr(tutti_last_error_message(), "the topology is missing") != NULL);
  OK(tutti_optimizer_create_adam(topology, "a", &adam));
  CHECK(tutti_optimizer_set_number(adam, "learningrate", 1) == TUTTI_CONFIG_ERROR);
  CHECK(strstr(tutti_last_error_message(), "learning_rate, beta1") != NULL);
  CHECK(tutti_optimizer_set_number(adam, "learning_rate", -1) == TUTTI_CONFIG_ERROR);
  CHECK(tutti_optimizer_set_number(adam, "learning_rate", NAN) == TUTTI_CONFIG_ERROR);
  CHECK(tutti_optimizer_set_text(adam, "device", "tpu") == TUTTI_CONFIG_ERROR);
  CHECK(tutti_parameter_add(adam, "p", TUTTI_FP64, 1, shape, TUTTI_REPLICATED, &index) ==
        TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_parameter_add(adam, "p", TUTTI_FP32, 1, empty, TUTTI_REPLICATED, &index) ==
        TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_parameter_add(adam, "p", TUTTI_FP32, 1, shape, 1, &index) == TUTTI_INVALID_ARGUMENT);
  CHECK(index == -1);
  OK(tutti_parameter_add(adam, "p", TUTTI_FP32, 1, shape, TUTTI_REPLICATED_PARTIAL, &index));
  CHECK(index == 0);
  CHECK(tutti_parameter_set(adam, 1, TUTTI_FP32, TUTTI_HOST, three) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_parameter_set(adam, 0, (tutti_type)9, TUTTI_HOST, three) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_parameter_set(adam, 0, TUTTI_FP32, TUTTI_CUDA, three) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_gradient_set(adam, 0, TUTTI_FP32, TUTTI_HOST, three) == TUTTI_INVALID_ARGUMENT);
  const void* values = NULL;
  CHECK(tutti_parameter_values(adam, 0, &values) == TUTTI_INVALID_ARGUMENT);
  OK(tutti_run_create(topology, &run));
  CHECK(tutti_run_start(run) == TUTTI_INVALID_ARGUMENT); /* no optimizer */
  OK(tutti_run_destroy(&run));
  OK(tutti_run_create(topology, &run));
  CHECK(tutti_run_set_number(run, "micro_batches", 1.5) == TUTTI_CONFIG_ERROR);
  CHECK(tutti_run_set_text(run, "samples", "forget") == TUTTI_CONFIG_ERROR);
  CHECK(tutti_run_set_text(run, "fault", "nonsense") == TUTTI_CONFIG_ERROR);
  OK(tutti_run_add_optimizer(run, adam));
  CHECK(tutti_run_add_optimizer(run, adam) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_step(run, NULL) == TUTTI_INVALID_ARGUMENT);
  OK(tutti_run_start(run));
  CHECK(tutti_run_start(run) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_run_set_number(run, "max_norm", 1) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_parameter_set(adam, 0, TUTTI_FP32, TUTTI_HOST, three) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_topology_destroy(&topology) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_optimizer_destroy(&adam) == TUTTI_INVALID_ARGUMENT);
  OK(tutti_run_destroy(&run));
  OK(tutti_optimizer_destroy(&adam));
  OK(tutti_topology_destroy(&topology));
  OK(tutti_run_destroy(&run)); /* NULL is destroyed already */
  CHECK(strcmp(tutti_status_name(TUTTI_IO_ERROR), "io_error") == 0);
  CHECK(strcmp(tutti_status_name((tutti_status)77), "unknown") == 0);
  CHECK(strcmp(tutti_verdict_name(TUTTI_SKIP), "skip") == 0);
  CHECK(strcmp(tutti_reason_name(TUTTI_REASON_MINIMUM_SCALE), "minimum_scale") == 0);
  CHECK(strcmp(tutti_stage_name(TUTTI_STAGE_NONE), "none") == 0);
  CHECK(strcmp(tutti_stage_name(TUTTI_STAGE_STATE), "state") == 0);
}

int main(int argc, char** argv)
{
  tutti_topology none = NULL;
  CHECK(tutti_finalize() == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_topology_create(MPI_COMM_WORLD, 1, &none) == TUTTI_INVALID_ARGUMENT);
  CHECK(strstr(tutti_last_error_message(), "call tutti_init first") != NULL);
  OK(tutti_init(&argc, &argv));
  OK(tutti_init(NULL, NULL));
  OK(tutti_finalize());
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 2) return 2;

  contracts();
  for (int m = 1; m <= 2; ++m) {
    if (size % m != 0) continue;
    commits(m);
    one_rank_is_nonfinite(m);
    checkpoints(argv[1], m);
  }
  absent_gradients();
  failures_of_one_rank_halt_all();
  disagreement_is_refused_at_the_start();
  stop_request();
  own_optimizer(argv[1]);
  background_saves(argv[1]);
  watched();
  for (int m = 1; m <= (size % 2 == 0 ? 2 : 1); ++m) {
    const int alone = size / m == 1;
    recomputed(m, "no", 0, "\"cause\": \"transient\"");
    recomputed(m, "yes", 0, alone ? "\"cause\": \"unknown\"" : "\"cause\": \"machine\"");
    recomputed(m, "no", 7, "rank 0: the caller's recomputation ended with 7");
  }

  const int status = worst();
  OK(tutti_finalize());
  CHECK(tutti_init(NULL, NULL) == TUTTI_INVALID_ARGUMENT); /* not a second time */
  return status != 0 || failures != 0;
}
