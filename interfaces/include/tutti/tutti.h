/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The C interface of tutti, whole: a code's own gradients go in, one outcome on all ranks comes
 * out. C99 and C++; the Fortran module `tutti` has the same names.
 *
 * How to read it
 * - Every function returns a tutti_status, outputs come last, and an output is written only on
 *   success (tutti_step writes its outcome on TUTTI_HALT too). No exception leaves a function.
 * - Names are tutti_<object>_<verb>. Handles are opaque; what was created is destroyed by the
 *   function of the same object, which sets the handle to NULL. Destroy in the order run,
 *   optimizers, topology: an object that another one still uses is refused.
 * - *Collective* calls are made by all ranks of the topology in the same order. They give the same
 *   status on all ranks, except TUTTI_MPI_ERROR, after which the job must end, and arguments that
 *   are not even looked at together (a NULL handle). All other calls are local.
 * - Strings are copied; a `const char*` that comes out belongs to the object it came from and
 *   lasts until the next call of the same function.
 * - Counts, extents and indices are int64_t and in elements; indices begin at 0. Arrays are dense,
 *   row-major, with an explicit element type and memory space.
 * - Calls on one topology and what hangs on it come from one thread at a time.
 * - A program's rounding mode and flush-to-zero (-ffast-math) do not reach tutti's arithmetic: it
 *   sets both while it runs, callbacks included, and restores them. */
#ifndef TUTTI_TUTTI_H
#define TUTTI_TUTTI_H

#include <mpi.h>
#include <stdint.h>

#include "tutti/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- status -------------------------------------------------------------------------------- */

typedef enum tutti_status {
  TUTTI_SUCCESS = 0,
  TUTTI_INVALID_ARGUMENT = 1, /**< the call breaks its contract */
  TUTTI_MPI_ERROR = 2,        /**< an MPI call failed: on this rank only, the job must end */
  TUTTI_DEVICE_ERROR = 3,     /**< device or memory: the operation was not done */
  TUTTI_IO_ERROR = 4,         /**< a file cannot be read or written */
  TUTTI_CHECKPOINT_ERROR = 5, /**< a checkpoint, or state to be saved, is refused */
  TUTTI_CONFIG_ERROR = 6,     /**< a setting is refused */
  TUTTI_HALT = 7,             /**< the run must not go on: all ranks, with the same outcome */
  TUTTI_INTERNAL_ERROR = 8    /**< anything else */
} tutti_status;

/** What the last failing call of this thread said: `problem (reason); suggestion`, "" if none has
 * failed. Owned by tutti, valid until the next failing call of this thread. */
TUTTI_EXPORT const char* tutti_last_error_message(void);
/** "success", "invalid_argument", ...; "unknown" for another number. Static. */
TUTTI_EXPORT const char* tutti_status_name(tutti_status status);

/* --- lifetime ------------------------------------------------------------------------------ */

/** Starts MPI (MPI_THREAD_FUNNELED) and Kokkos, each only if nobody has. Needed unless the program
 * has started both. `argc`, `argv`: main's, or both NULL. May be called again while it is in force;
 * each call needs its tutti_finalize. Collective over MPI_COMM_WORLD where it starts MPI. Neither
 * starts a second time in a process: TUTTI_INVALID_ARGUMENT after one has ended. */
TUTTI_EXPORT tutti_status tutti_init(int* argc, char*** argv);
/** Ends what the first tutti_init started, and nothing else. Collective where it ends MPI. All
 * handles must be destroyed before. */
TUTTI_EXPORT tutti_status tutti_finalize(void);

/* --- topology: who takes part --------------------------------------------------------------- */

typedef struct tutti_topology_s* tutti_topology;

/** The axes of a job over a duplicate of `communicator`: `model_parallel` (M, at least 1) ranks
 * hold one copy of the model, D = size / M copies train data-parallel; rank = d * M + m. Collective
 * over `communicator`. TUTTI_INVALID_ARGUMENT if M does not divide its size or differs. */
TUTTI_EXPORT tutti_status tutti_topology_create(MPI_Comm communicator, int model_parallel,
                                                tutti_topology* topology);
/** This rank's d and D, m and M. Outputs may be NULL. */
TUTTI_EXPORT tutti_status tutti_topology_ranks(tutti_topology topology, int* data_rank,
                                               int* data_parallel, int* model_rank,
                                               int* model_parallel);
/** Collective: frees the duplicates. */
TUTTI_EXPORT tutti_status tutti_topology_destroy(tutti_topology* topology);

/* --- optimizers ----------------------------------------------------------------------------- */

/** Element types. A parameter has one of the first three; weights and gradients of the caller's may
 * be fp64, too: conversions go through fp32 and round to nearest even. Integers are only for
 * tutti_array_bind and tutti_scalar_bind. */
typedef enum tutti_type {
  TUTTI_FP16 = 0,
  TUTTI_BF16 = 1,
  TUTTI_FP32 = 2,
  TUTTI_FP64 = 3,
  TUTTI_UINT8 = 4,
  TUTTI_INT32 = 5,
  TUTTI_UINT32 = 6,
  TUTTI_INT64 = 7,
  TUTTI_UINT64 = 8
} tutti_type;

/** Where an array lies. TUTTI_CUDA: only for an optimizer with "device" = "cuda". */
typedef enum tutti_space { TUTTI_HOST = 0, TUTTI_CUDA = 1 } tutti_space;

/** Instead of a split axis: every model-parallel rank holds the parameter and computes its whole
 * gradient, or a part that tutti adds up. */
enum { TUTTI_REPLICATED = -1, TUTTI_REPLICATED_PARTIAL = -2 };

typedef struct tutti_optimizer_s* tutti_optimizer;
typedef struct tutti_inspection_s* tutti_inspection;

/** What a committed attempt applies. */
typedef struct tutti_update {
  int64_t step;                /**< updates that this optimizer has made so far */
  double grad_factor;          /**< multiply the summed, handed-in gradient by this */
  double learning_rate_factor; /**< of the schedule; multiply the base rate by this */
  const uint8_t* has_gradient; /**< [parameters]: 0 where no rank has a gradient: leave it alone */
} tutti_update;

/** An optimizer of the caller's own under tutti's decision. In each tutti_step they are called in
 * this order; all but `inspect` and `publish` may be NULL. A callback returns 0, or a code of its
 * own for a failure on this rank, which becomes TUTTI_HALT on all ranks. They must not call
 * tutti_step, nor throw or jump out. `exchange` and `gather` are called by all ranks in the same
 * order and may communicate; they are called after a failure elsewhere, too. */
typedef struct tutti_callbacks {
  void* context; /**< handed to each callback */
  /** At the first call of a new window. */
  int (*open)(void* context);
  /** In tutti_window_add: take the gradients of this micro-batch. */
  int (*accumulate)(void* context, int64_t micro);
  /** Collective: sum the gradients over ranks. */
  int (*exchange)(void* context);
  /** Show tutti the gradients, by tutti_inspection_add. */
  int (*inspect)(void* context, tutti_inspection inspection);
  /** Compute the update beside the state; on Skip and Halt nothing may have changed. */
  int (*stage)(void* context, const tutti_update* update);
  /** Collective: send staged values where they are needed. */
  int (*gather)(void* context);
  /** Show tutti the staged values, by tutti_inspection_add. */
  int (*confirm)(void* context, tutti_inspection inspection);
  /** The staged update becomes the state. Cannot fail. */
  void (*publish)(void* context);
  /** The staged update, or what there is of it, is forgotten. After a window that no optimizer
   * staged it is not called; where another one's `stage` failed first, it is called without this
   * one's having been. So is `gather`, which all ranks enter. */
  void (*discard)(void* context);
  /** The arrays of tutti_state_bind were overwritten by a checkpoint on all ranks. */
  void (*restored)(void* context);
} tutti_callbacks;

/** Adam(W) with fp32 master weights and moments, sharded over the ranks. `name` identifies it in
 * checkpoints. */
TUTTI_EXPORT tutti_status tutti_optimizer_create_adam(tutti_topology topology, const char* name,
                                                      tutti_optimizer* optimizer);
/** An optimizer of the caller's own. `callbacks` is copied, what `context` points to is not. */
TUTTI_EXPORT tutti_status tutti_optimizer_create_callbacks(tutti_topology topology,
                                                           const char* name,
                                                           const tutti_callbacks* callbacks,
                                                           tutti_optimizer* optimizer);
/** Before tutti_run_start. Of Adam, equal on all ranks but for the last; defaults in brackets:
 * "learning_rate" [1e-3], "beta1" [0.9], "beta2" [0.999], "epsilon" [1e-8], "weight_decay" [0],
 * "decoupled" [0; 1: AdamW], "ema_decay" [0: no moving average of the weights], "fp32_wire" [0; 1:
 * gradients always travel in fp32], "rank_weight" [1: this rank's share of the state, relative to
 * the others'; 0: it owns nothing]. TUTTI_CONFIG_ERROR: no such setting. */
TUTTI_EXPORT tutti_status tutti_optimizer_set_number(tutti_optimizer optimizer, const char* setting,
                                                     double value);
/** Before tutti_run_start. "device" ["host"]: "host" or "cuda" (the device that Kokkos uses). */
TUTTI_EXPORT tutti_status tutti_optimizer_set_text(tutti_optimizer optimizer, const char* setting,
                                                   const char* text);
/** Collective, after the run's. Frees what Adam allocated; arrays of the caller are left alone. */
TUTTI_EXPORT tutti_status tutti_optimizer_destroy(tutti_optimizer* optimizer);

/* --- parameters and gradients --------------------------------------------------------------- */

/** Declares a parameter, before tutti_run_start, on all ranks the same in the same order. `shape`:
 * its `axes` global extents, each at least 1 (a scalar has 0 axes). `type`: of the model's values
 * and gradients. `placement`: TUTTI_REPLICATED, TUTTI_REPLICATED_PARTIAL, or the axis along which
 * it is cut over the model-parallel ranks: rank m holds [n m / M, n (m+1) / M). */
TUTTI_EXPORT tutti_status tutti_parameter_add(tutti_optimizer optimizer, const char* name,
                                              tutti_type type, int axes, const int64_t* shape,
                                              int placement, int64_t* parameter);
/** The part that this rank holds: indices [begin, begin + extent) of the split axis (of axis 0
 * where it is not split), `elements` in all. "This rank's values" below are those. Outputs may be
 * NULL. */
TUTTI_EXPORT tutti_status tutti_parameter_piece(tutti_optimizer optimizer, int64_t parameter,
                                                int64_t* begin, int64_t* extent, int64_t* elements);
/** Initial values, before tutti_run_start; they are copied at once. Zero where never given. Ranks
 * that hold copies of the same values: one of them counts, and all have its values after
 * tutti_run_start. Adam only. */
TUTTI_EXPORT tutti_status tutti_parameter_set(tutti_optimizer optimizer, int64_t parameter,
                                              tutti_type type, tutti_space space,
                                              const void* values);
/** `values` stays the caller's and holds the weights from now on: tutti_run_start takes the initial
 * values from it, and tutti_run_start, each committed tutti_step and tutti_checkpoint_restore write
 * the new ones into it. Between these calls tutti neither reads nor writes it. Before
 * tutti_run_start; it must last until tutti_run_destroy. Adam only. */
TUTTI_EXPORT tutti_status tutti_parameter_bind(tutti_optimizer optimizer, int64_t parameter,
                                               tutti_type type, tutti_space space, void* values);
/** This rank's weights in the parameter's own type, in host memory of tutti's: read only, valid
 * until the next tutti_step or tutti_checkpoint_restore; ask again after each. After
 * tutti_run_start. Adam only. */
TUTTI_EXPORT tutti_status tutti_parameter_values(tutti_optimizer optimizer, int64_t parameter,
                                                 const void** values);
/** Copies this rank's weights into `values`. After tutti_run_start. Adam only. */
TUTTI_EXPORT tutti_status tutti_parameter_get(tutti_optimizer optimizer, int64_t parameter,
                                              tutti_type type, tutti_space space, void* values);

/** This rank's gradient in the current micro-batch, copied at once: the gradient of the *sum* of
 * its samples' losses, times the gradient scale (tutti_window_scale). A second call in one
 * micro-batch replaces the first. A parameter without a call has no gradient here: it counts as
 * zero, and where no rank has one the parameter and its moments stay untouched. Adam only.
 *
 * A failure of this and the next function is also one of the window: all ranks halt with it. */
TUTTI_EXPORT tutti_status tutti_gradient_set(tutti_optimizer optimizer, int64_t parameter,
                                             tutti_type type, tutti_space space,
                                             const void* values);
/** The same without a copy: where to write it, in the parameter's own type. Write all of it; ask
 * again in each micro-batch, valid until tutti_window_add. Host devices only. */
TUTTI_EXPORT tutti_status tutti_gradient_values(tutti_optimizer optimizer, int64_t parameter,
                                                void** values);

/* --- for optimizers of the caller's own ------------------------------------------------------ */

/** What is shown to tutti_inspection_add in `inspect`; in `confirm` it makes no difference. */
typedef enum tutti_part {
  TUTTI_CONTRIBUTION = 0, /**< this rank's own gradient, before the sum over ranks */
  TUTTI_SUM = 1,          /**< the summed gradient: adds to the norm, so each element once a job */
  TUTTI_COPY = 2          /**< a copy of summed elements that another rank shows as TUTTI_SUM */
} tutti_part;

/** In `inspect` and `confirm` only. Shows `count` elements of a parameter, beginning with element
 * `first` of this rank's piece. Nonfinite ones are counted and located; fp64 beyond the range of
 * fp32 counts as nonfinite. The norm's last bits depend on how elements are cut into calls. */
TUTTI_EXPORT tutti_status tutti_inspection_add(tutti_inspection inspection, int64_t parameter,
                                               int64_t first, int64_t count, tutti_part part,
                                               tutti_type type, tutti_space space,
                                               const void* values);
/** `values` (fp32, host memory, as long as this rank's piece) is the state `array` of a parameter:
 * checkpoints save it and write it on all ranks that hold it; the owner's values count where it is
 * replicated. Give each array for every parameter, before tutti_run_start; it must last until
 * tutti_run_destroy. The name "exp_avg_sq" is refused with negative values in it. */
TUTTI_EXPORT tutti_status tutti_state_bind(tutti_optimizer optimizer, int64_t parameter,
                                           const char* array, float* values);

/* --- the run --------------------------------------------------------------------------------- */

typedef struct tutti_run_s* tutti_run;

/** A run over a topology's ranks: settings, optimizers, then tutti_run_start. */
TUTTI_EXPORT tutti_status tutti_run_create(tutti_topology topology, tutti_run* run);
/** Before tutti_run_start; equal on all ranks. Defaults in brackets:
 * "window_samples" [1]: nominal samples of one update over all ranks; "micro_batches" [1]: how
 * often each rank calls tutti_window_add in it, at most; "epoch_samples" [0: no finite epoch];
 * "max_norm" [0: no clipping] of the mean gradient;
 * "loss_scaling" [0; 1: dynamic, for fp16], "init_scale" [65536], "growth" [2], "backoff" [0.5],
 * "growth_interval" [2000], "hysteresis" [1], "min_scale" [0: none], "max_scale" [0: none];
 * "max_consecutive_skips" [50; 0: no limit], "repeat_limit" [3; 0: no limit], "max_skip_rate" [0:
 * no limit] of the last "skip_window" [64] attempts: halt then;
 * "digest_every" [0: never]: committed updates between checks of the weights' copies;
 * "warmup" [0], "schedule_steps" [0], "final_factor" [0]: of the schedule;
 * "checkpoint_keep" [0: all]. */
TUTTI_EXPORT tutti_status tutti_run_set_number(tutti_run run, const char* setting, double value);
/** Before tutti_run_start; equal on all ranks. "samples" ["replay"]: a skipped window comes again,
 * or "drop": its samples count as consumed; "update" ["staged"]: beside the state, or "in_place";
 * "schedule" ["constant"], "linear", "cosine"; "configuration" ["{}"]: JSON that goes into
 * checkpoints; "checkpoint_io" ["mpiio"], or "skeleton": by plain writes, the same bytes; "verify"
 * ["full"]: how much of a payload a restore compares with its hashes, or "sampled", "off";
 * "incident_dir" [""]: where each attempt that is not committed leaves a JSON file;
 * "fault": a planned fault for a drill, may be given several times. */
TUTTI_EXPORT tutti_status tutti_run_set_text(tutti_run run, const char* setting, const char* text);
/** An optimizer steps in one run. Before tutti_run_start, on all ranks in the same order. */
TUTTI_EXPORT tutti_status tutti_run_add_optimizer(tutti_run run, tutti_optimizer optimizer);
/** A rank that does not come any more, as a rank of its node saw it. */
typedef struct tutti_loss {
  int32_t stalled;     /**< 1: it stands still, or is on another node; 0: its process has ended */
  int32_t rank;        /**< -1: not known, it is on another node */
  int64_t pid;         /**< 0: not known */
  double seconds;      /**< since it last moved */
  const char* message; /**< one sentence for people, valid during the call */
} tutti_loss;
/** Called on a thread of tutti's, on one rank of each node that saw the loss. May end the process;
 * must not call tutti or MPI. */
typedef void (*tutti_lost)(void* context, const tutti_loss* loss);
/** Before tutti_run_start, on all ranks with the same `seconds` [0: nobody watches]: a rank that
 * stands still for so long while others wait for it, or whose process ends, is told to `lost`.
 * NULL: the message goes to standard error, and a stall ends the process with exit code 4. Phases
 * of the caller's own that take longer call tutti_progress. */
TUTTI_EXPORT tutti_status tutti_run_watch(tutti_run run, double seconds, tutti_lost lost,
                                          void* context);
/** After tutti_run_start: whether this run is watched, and a few words on that or on why not (one
 * rank, MPI without threads, no shared memory). Outputs may be NULL. */
TUTTI_EXPORT tutti_status tutti_run_watched(tutti_run run, int* watched, const char** description);
/** A sign of life from a long phase of the caller's own; a few stores. From the thread that called
 * tutti_run_start. */
TUTTI_EXPORT tutti_status tutti_progress(tutti_run run);
/** Computes the samples at positions [begin, end) once more: sets the gradients of their losses'
 * sum times `gradient_scale` by the gradient calls, as in a window, and `*loss_sum`. Not 0: there
 * is no result. Empty ones need nothing. */
typedef int (*tutti_recompute)(void* context, int64_t begin, int64_t end, double gradient_scale,
                               double* loss_sum);
/** Before tutti_run_start, on all ranks: a window that went nonfinite is computed again in
 * tutti_step, by the rank whose it is and by the next data-parallel one (with all their
 * model-parallel ranks, which may communicate in it), and the incident says whether it was a
 * passing error, that machine, or the data. No outcome depends on it. `arithmetic` (may be NULL)
 * names what the bits of the caller's own computation depend on, such as a device: they are
 * compared between ranks of the same name. NULL for `recompute`: not done. */
TUTTI_EXPORT tutti_status tutti_run_recompute(tutti_run run, tutti_recompute recompute,
                                              const char* arithmetic, void* context);
/** Collective: fixes settings and parameters, allocates, and spreads the initial values.
 * TUTTI_INVALID_ARGUMENT or TUTTI_CONFIG_ERROR for what does not fit together or differs between
 * ranks, TUTTI_DEVICE_ERROR for lack of memory; then the run can only be destroyed. */
TUTTI_EXPORT tutti_status tutti_run_start(tutti_run run);
/** Committed updates, attempts, and committed samples so far. Outputs may be NULL. */
TUTTI_EXPORT tutti_status tutti_run_position(tutti_run run, int64_t* step, int64_t* attempt,
                                             int64_t* samples);
/** Collective: one number for all optimizer state: equal for equal state on any number of ranks. */
TUTTI_EXPORT tutti_status tutti_run_digest(tutti_run run, uint64_t* digest);
/** The next tutti_step tells all ranks to stop (tutti_outcome::stop_requested). May be called at
 * any time after tutti_run_start, also from a signal handler or another thread. */
TUTTI_EXPORT tutti_status tutti_run_request_stop(tutti_run run);
/** Collective. A save that is in flight is ended first, as by tutti_checkpoint_finish, whose status
 * this gives; the run is destroyed all the same. */
TUTTI_EXPORT tutti_status tutti_run_destroy(tutti_run* run);

/* --- the window: what this rank adds to the next update -------------------------------------- */
/* It opens by itself with the first of these calls, or of the gradient calls, after tutti_step. */

/** Sample positions [begin, end) of this rank's part in micro-batch `micro`; for codes that cut
 * numbered samples. May be empty. */
TUTTI_EXPORT tutti_status tutti_window_samples(tutti_run run, int64_t micro, int64_t* begin,
                                               int64_t* end);
/** The loss scale of the window, and the gradient scale = loss scale / window_samples: multiply the
 * sum of the sample losses by the latter before differentiating it. Outputs may be NULL. */
TUTTI_EXPORT tutti_status tutti_window_scale(tutti_run run, double* loss_scale,
                                             double* gradient_scale);
/** The gradients of a micro-batch are set: `loss_sum` is the unscaled sum of its samples' losses,
 * `samples` their number (0: this rank adds nothing). Any numbers over the ranks: the update uses
 * the mean over all samples. More than "micro_batches" calls: TUTTI_INVALID_ARGUMENT, and all ranks
 * halt. */
TUTTI_EXPORT tutti_status tutti_window_add(tutti_run run, double loss_sum, int64_t samples);
/** The caller's own code failed on this rank: all ranks halt in tutti_step, with this code and
 * text. tutti_step must still be called. */
TUTTI_EXPORT tutti_status tutti_window_fail(tutti_run run, int64_t code, const char* text);

/* --- the step --------------------------------------------------------------------------------- */

typedef enum tutti_verdict {
  TUTTI_COMMIT = 0, /**< all ranks applied the update */
  TUTTI_SKIP = 1,   /**< none did, the run goes on */
  TUTTI_HALTED = 2  /**< none did (but see TUTTI_REASON_PARTIAL_UPDATE), the run must end */
} tutti_verdict;

typedef enum tutti_reason {
  TUTTI_REASON_NONE = 0,
  TUTTI_REASON_GRADIENT = 1,           /**< skip: a nonfinite gradient */
  TUTTI_REASON_LOSS = 2,               /**< skip: a nonfinite loss with finite gradients */
  TUTTI_REASON_UPDATE = 3,             /**< skip: the update would be nonfinite */
  TUTTI_REASON_CONTROL_MISMATCH = 4,   /**< ranks disagree on what must agree */
  TUTTI_REASON_WINDOW_FAILED = 5,      /**< a failure on some rank before the decision */
  TUTTI_REASON_UPDATE_FAILED = 6,      /**< a failure on some rank while staging */
  TUTTI_REASON_PARTIAL_UPDATE = 7,     /**< the same with "in_place": state was changed, restart */
  TUTTI_REASON_NONFINITE_STATE = 8,    /**< optimizer state is nonfinite */
  TUTTI_REASON_REPEAT_LIMIT = 9,       /**< the same samples were bad repeat_limit times */
  TUTTI_REASON_MINIMUM_SCALE = 10,     /**< overflow at the minimum loss scale */
  TUTTI_REASON_CONSECUTIVE_SKIPS = 11, /**< max_consecutive_skips reached */
  TUTTI_REASON_SKIP_RATE = 12,         /**< more of the last attempts skipped than max_skip_rate */
  TUTTI_REASON_REPLICA_MISMATCH = 13   /**< a copy of the weights is not what their owner wrote */
} tutti_reason;

/** How a background save (tutti_checkpoint_start) stands. */
typedef enum tutti_save {
  TUTTI_SAVE_NONE = 0,    /**< none in flight, or its end was told before */
  TUTTI_SAVE_PENDING = 1, /**< some rank is writing */
  TUTTI_SAVE_DONE = 2,    /**< all have written: call tutti_checkpoint_finish */
  TUTTI_SAVE_FAILED = 3   /**< some rank could not: call tutti_checkpoint_finish, which says why */
} tutti_save;

/** What an attempt came to; the same bits on all ranks. */
typedef struct tutti_outcome {
  int32_t verdict;             /**< tutti_verdict */
  int32_t reason;              /**< tutti_reason */
  int64_t step;                /**< committed updates after it */
  int64_t attempt;             /**< its number, from 1 */
  int64_t samples;             /**< agreed number in the window */
  int64_t window_begin;        /**< its sample positions [begin, end) */
  int64_t window_end;          /**< */
  double loss;                 /**< mean over the samples; NaN if a rank's own was nonfinite */
  double loss_scale;           /**< of this window */
  double grad_norm;            /**< of the mean gradient before clipping; NaN if nonfinite */
  double clip;                 /**< factor that clipping applied, 1 for none */
  double learning_rate_factor; /**< of the schedule */
  int64_t nonfinite;           /**< nonfinite elements, gradients or staged values */
  int64_t failure_code;        /**< of a failure: from tutti_window_fail or a callback; else 0 */
  int32_t rank;                /**< of a failure, mismatch or incident; -1: none */
  int32_t stop_requested;      /**< 1: some rank asked to stop; all leave here */
  int32_t save;                /**< tutti_save */
  int32_t reserved;            /**< 0 */
} tutti_outcome;

typedef enum tutti_stage {
  TUTTI_STAGE_NONE = -1,
  TUTTI_STAGE_LOSS = 0,
  TUTTI_STAGE_MICRO_BATCH = 1,
  TUTTI_STAGE_ACCUMULATION = 2,
  TUTTI_STAGE_EXCHANGE = 3,
  TUTTI_STAGE_UNSCALE = 4,
  TUTTI_STAGE_CLIP = 5,
  TUTTI_STAGE_UPDATE = 6,
  TUTTI_STAGE_STATE = 7
} tutti_stage;

/** The first nonfinite value of the last attempt, in a fixed order; the same on all ranks. */
typedef struct tutti_incident {
  int32_t stage;     /**< tutti_stage: where it was first seen; TUTTI_STAGE_NONE: there is none */
  int32_t rank;      /**< whose value it is; -1: none */
  int64_t optimizer; /**< index in the order of tutti_run_add_optimizer; -1: none, or a loss */
  int64_t parameter; /**< index in the optimizer; -1: none, or a loss */
  int64_t element;   /**< index in the parameter's global shape; -1: none, or a loss */
  int64_t micro;     /**< micro-batch; -1: not known */
  int64_t count;     /**< nonfinite elements that this rank reports there */
  double value;      /**< NaN or an infinity; 0: none */
} tutti_incident;

/** Collective: one attempt at an update, in the place of `optimizer.step()`. Closes the window,
 * sums the gradients, votes, and applies the update on all ranks or on none. TUTTI_SUCCESS: Commit
 * or Skip; TUTTI_HALT: the run has ended on all ranks, the last checkpoint is the way on.
 * `outcome`, which may be NULL, is written in all three cases. */
TUTTI_EXPORT tutti_status tutti_step(tutti_run run, tutti_outcome* outcome);
/** One sentence on the last attempt for people, with names; "" after Commit and before the first.
 */
TUTTI_EXPORT tutti_status tutti_step_message(tutti_run run, const char** message);
/** What the last attempt met first. */
TUTTI_EXPORT tutti_status tutti_step_incident(tutti_run run, tutti_incident* incident);
/** All that is known of the last attempt's failure, as the JSON that "incident_dir" gets: first
 * offender, precisions, losses, sample positions, checkpoint. The same on all ranks; "" after
 * Commit. */
TUTTI_EXPORT tutti_status tutti_step_incident_json(tutti_run run, const char** json);
/** "commit", "skip", "halt"; "unknown" for another number. Static. */
TUTTI_EXPORT const char* tutti_verdict_name(tutti_verdict verdict);
/** "none", "gradient", "control_mismatch", ...; "unknown" for another number. Static. */
TUTTI_EXPORT const char* tutti_reason_name(tutti_reason reason);
/** "none", "loss", "micro_batch", ...; "unknown" for another number. Static. */
TUTTI_EXPORT const char* tutti_stage_name(tutti_stage stage);

/* --- checkpoints ------------------------------------------------------------------------------ */
/* Between tutti_step and the next window; in an open window they give TUTTI_INVALID_ARGUMENT. */

/** A distributed array of the caller's own (a field, a mesh) that goes into the run's checkpoints
 * and comes back from them: row-major, of `axes` global extents `shape`, of which this rank holds
 * indices [begin, begin + extent) along each axis, contiguous in host memory at `values`. NULL and
 * an extent of 0: it holds nothing. `values` stays the caller's and is read by
 * tutti_checkpoint_save and _start, written by restores, and left alone in between; it must last
 * until tutti_run_destroy. All ranks bind the same names, types and shapes; over all ranks every
 * element lies in exactly one part, which a save checks. A restore may have other parts on another
 * number of ranks. Binding a name again replaces it. Not fp16 or bf16. Local. */
TUTTI_EXPORT tutti_status tutti_array_bind(tutti_run run, const char* name, tutti_type type,
                                           int axes, const int64_t* shape, const int64_t* begin,
                                           const int64_t* extent, void* values);
/** The same for one value that is equal on all ranks. */
TUTTI_EXPORT tutti_status tutti_scalar_bind(tutti_run run, const char* name, tutti_type type,
                                            void* value);

/** Collective: writes `directory`/step-<12 digits>.h5 with the state of all optimizers, and says
 * its path in `file` (NULL: not wanted). A failure, the same on all ranks, leaves what was there:
 * TUTTI_CHECKPOINT_ERROR (nonfinite state), TUTTI_IO_ERROR; the run can go on. */
TUTTI_EXPORT tutti_status tutti_checkpoint_save(tutti_run run, const char* directory,
                                                const char** file);
/** Collective: the same in the background: returns when the state and the bound arrays have been
 * copied; threads write the copy while the run goes on. One at a time. tutti_outcome::save says
 * when all ranks are done. */
TUTTI_EXPORT tutti_status tutti_checkpoint_start(tutti_run run, const char* directory);
/** Collective: ends the save in flight, waiting for it where no outcome has said its end, and says
 * its path in `file` (NULL: not wanted); `*file` is NULL if none was in flight. Only now has the
 * checkpoint its name. The status is what tutti_checkpoint_save would give. */
TUTTI_EXPORT tutti_status tutti_checkpoint_finish(tutti_run run, const char** file);
/** Collective: the newest complete checkpoint in `directory`; `*file` is NULL if there is none, or
 * no directory. Of `directory`, rank 0's counts. */
TUTTI_EXPORT tutti_status tutti_checkpoint_latest(tutti_run run, const char* directory,
                                                  const char** file);
/** Collective: fills the state of all optimizers from `file` (rank 0's counts), verified, from any
 * number of ranks, and continues from its step. TUTTI_CHECKPOINT_ERROR: damaged, incomplete or of
 * another model; TUTTI_IO_ERROR: cannot be read. After a failure restore another one. */
TUTTI_EXPORT tutti_status tutti_checkpoint_restore(tutti_run run, const char* file);
/** Collective: restores the newest checkpoint in `directory` (rank 0's counts) that verifies,
 * passing over damaged ones, and says its path in `file`; `*file` is NULL if there is none, or no
 * directory. A good one of another model is refused: TUTTI_CHECKPOINT_ERROR. */
TUTTI_EXPORT tutti_status tutti_checkpoint_restore_latest(tutti_run run, const char* directory,
                                                          const char** file);
/** Collective: only the weights of `file`, to begin a new run with: moments are zero, the run's
 * position and loss scale stay as they are, and parameters may have another type than there. */
TUTTI_EXPORT tutti_status tutti_checkpoint_restore_weights(tutti_run run, const char* file);
/** Local: the "configuration" that `file` was saved with, JSON. */
TUTTI_EXPORT tutti_status tutti_checkpoint_configuration(tutti_run run, const char* file,
                                                         const char** text);

#ifdef __cplusplus
}
#endif

#endif
