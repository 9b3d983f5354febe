! SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
!> The Fortran interface of tutti: the C interface (tutti/tutti.h, where every call is documented)
!> with the same names. What differs, in the manner of Fortran:
!> - Calls are subroutines with an optional last argument `ierr` (TUTTI_SUCCESS, ...). Without it a
!>   failure, TUTTI_HALT included, prints its message and ends the program, as an MPI call does.
!> - Communicators are `type(MPI_Comm)` or integers.
!> - Arrays are real32 or real64 of any rank and say their own type and size, which is checked.
!>   They lie in host memory. Sections may be handed in wherever values are copied; what is bound
!>   (tutti_parameter_bind, tutti_state_bind, tutti_array_bind, which takes int32 and int64, too)
!>   must be contiguous and have the `target` attribute.
!> - Shapes are those of the Fortran array; checkpoints hold them reversed, as HDF5 does for
!>   Fortran. `placement` is TUTTI_REPLICATED, TUTTI_REPLICATED_PARTIAL or the dimension (from 1)
!>   that is cut; tutti_parameter_piece gives the first index from 1.
!> - Other indices (parameters, elements, micro-batches, sample positions) count from 0, as in
!>   messages and files. `integer(tutti_index)` holds them.
!> - Strings that come out are allocatable.
module tutti
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, int64, real32, real64
  use mpi_f08, only: MPI_Comm
  implicit none
  private

  integer, parameter, public :: tutti_index = c_int64_t

  integer(c_int), parameter, public :: TUTTI_SUCCESS = 0, TUTTI_INVALID_ARGUMENT = 1, &
    TUTTI_MPI_ERROR = 2, TUTTI_DEVICE_ERROR = 3, TUTTI_IO_ERROR = 4, TUTTI_CHECKPOINT_ERROR = 5, &
    TUTTI_CONFIG_ERROR = 6, TUTTI_HALT = 7, TUTTI_INTERNAL_ERROR = 8
  integer(c_int), parameter, public :: TUTTI_FP16 = 0, TUTTI_BF16 = 1, TUTTI_FP32 = 2, &
    TUTTI_FP64 = 3, TUTTI_UINT8 = 4, TUTTI_INT32 = 5, TUTTI_UINT32 = 6, TUTTI_INT64 = 7, &
    TUTTI_UINT64 = 8
  integer(c_int), parameter, public :: TUTTI_HOST = 0, TUTTI_CUDA = 1
  integer(c_int), parameter, public :: TUTTI_REPLICATED = -1, TUTTI_REPLICATED_PARTIAL = -2
  integer(c_int), parameter, public :: TUTTI_CONTRIBUTION = 0, TUTTI_SUM = 1, TUTTI_COPY = 2
  integer(c_int), parameter, public :: TUTTI_COMMIT = 0, TUTTI_SKIP = 1, TUTTI_HALTED = 2
  integer(c_int), parameter, public :: TUTTI_SAVE_NONE = 0, TUTTI_SAVE_PENDING = 1, &
    TUTTI_SAVE_DONE = 2, TUTTI_SAVE_FAILED = 3
  integer(c_int), parameter, public :: TUTTI_REASON_NONE = 0, TUTTI_REASON_GRADIENT = 1, &
    TUTTI_REASON_LOSS = 2, TUTTI_REASON_UPDATE = 3, TUTTI_REASON_CONTROL_MISMATCH = 4, &
    TUTTI_REASON_WINDOW_FAILED = 5, TUTTI_REASON_UPDATE_FAILED = 6, &
    TUTTI_REASON_PARTIAL_UPDATE = 7, TUTTI_REASON_NONFINITE_STATE = 8, &
    TUTTI_REASON_REPEAT_LIMIT = 9, TUTTI_REASON_MINIMUM_SCALE = 10, &
    TUTTI_REASON_CONSECUTIVE_SKIPS = 11, TUTTI_REASON_SKIP_RATE = 12, &
    TUTTI_REASON_REPLICA_MISMATCH = 13
  integer(c_int), parameter, public :: TUTTI_STAGE_NONE = -1, TUTTI_STAGE_LOSS = 0, &
    TUTTI_STAGE_MICRO_BATCH = 1, TUTTI_STAGE_ACCUMULATION = 2, TUTTI_STAGE_EXCHANGE = 3, &
    TUTTI_STAGE_UNSCALE = 4, TUTTI_STAGE_CLIP = 5, TUTTI_STAGE_UPDATE = 6, TUTTI_STAGE_STATE = 7

  type, bind(c), public :: tutti_topology
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(c), public :: tutti_optimizer
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(c), public :: tutti_run
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  !> Handed to the callbacks `inspect` and `confirm` by value.
  type, bind(c), public :: tutti_inspection
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  type, bind(c), public :: tutti_outcome
    integer(c_int32_t) :: verdict = TUTTI_COMMIT, reason = TUTTI_REASON_NONE
    integer(c_int64_t) :: step = 0, attempt = 0, samples = 0, window_begin = 0, window_end = 0
    real(c_double) :: loss = 0, loss_scale = 1, grad_norm = 0, clip = 1, learning_rate_factor = 1
    integer(c_int64_t) :: nonfinite = 0, failure_code = 0
    integer(c_int32_t) :: rank = -1, stop_requested = 0, save = TUTTI_SAVE_NONE, reserved = 0
  end type

  type, bind(c), public :: tutti_incident
    integer(c_int32_t) :: stage = TUTTI_STAGE_NONE, rank = -1
    integer(c_int64_t) :: optimizer = -1, parameter = -1, element = -1, micro = -1, count = 0
    real(c_double) :: value = 0
  end type

  type, bind(c), public :: tutti_update
    integer(c_int64_t) :: step
    real(c_double) :: grad_factor, learning_rate_factor
    type(c_ptr) :: has_gradient  !< of integer(c_int8_t), one a parameter
  end type

  !> Handed to the procedure of tutti_run_watch.
  type, bind(c), public :: tutti_loss
    integer(c_int32_t) :: stalled, rank
    integer(c_int64_t) :: pid
    real(c_double) :: seconds
    type(c_ptr) :: message
  end type

  !> c_funloc of bind(c) procedures with the interfaces in tutti.h; left out ones do nothing.
  type, bind(c), public :: tutti_callbacks
    type(c_ptr) :: context = c_null_ptr
    type(c_funptr) :: open = c_null_funptr, accumulate = c_null_funptr, exchange = c_null_funptr, &
      inspect = c_null_funptr, stage = c_null_funptr, gather = c_null_funptr, &
      confirm = c_null_funptr, publish = c_null_funptr, discard = c_null_funptr, &
      restored = c_null_funptr
  end type

  public :: tutti_init, tutti_finalize, tutti_last_error_message, tutti_status_name, &
    tutti_verdict_name, tutti_reason_name, tutti_stage_name
  public :: tutti_topology_create, tutti_topology_ranks, tutti_topology_destroy
  public :: tutti_optimizer_create_adam, tutti_optimizer_create_callbacks, &
    tutti_optimizer_set_number, tutti_optimizer_set_text, tutti_optimizer_destroy
  public :: tutti_parameter_add, tutti_parameter_piece, tutti_parameter_set, tutti_parameter_bind, &
    tutti_parameter_values, tutti_parameter_get, tutti_gradient_set, tutti_gradient_values
  public :: tutti_inspection_add, tutti_state_bind
  public :: tutti_run_create, tutti_run_set_number, tutti_run_set_text, tutti_run_add_optimizer, &
    tutti_run_start, tutti_run_position, tutti_run_digest, tutti_run_request_stop, &
    tutti_run_watch, tutti_run_watched, tutti_progress, tutti_run_recompute, tutti_run_destroy
  public :: tutti_window_samples, tutti_window_scale, tutti_window_add, tutti_window_fail
  public :: tutti_step, tutti_step_message, tutti_step_incident, tutti_step_incident_json
  public :: tutti_checkpoint_save, tutti_checkpoint_latest, tutti_checkpoint_restore, &
    tutti_checkpoint_restore_latest, tutti_checkpoint_restore_weights, &
    tutti_checkpoint_configuration, tutti_checkpoint_start, tutti_checkpoint_finish
  public :: tutti_array_bind, tutti_scalar_bind

  interface tutti_topology_create
    module procedure topology_create_f08, topology_create_integer
  end interface
  interface tutti_optimizer_set_number
    module procedure optimizer_set_real64, optimizer_set_int32
  end interface
  interface tutti_run_set_number
    module procedure run_set_real64, run_set_int32, run_set_int64
  end interface
  interface tutti_parameter_add
    module procedure parameter_add_int32, parameter_add_int64
  end interface
  interface tutti_window_add
    module procedure window_add_int32, window_add_int64
  end interface
  interface tutti_window_fail
    module procedure window_fail_int32, window_fail_int64
  end interface
  interface tutti_parameter_set
    module procedure parameter_set_real32, parameter_set_real64
  end interface
  interface tutti_parameter_bind
    module procedure parameter_bind_real32, parameter_bind_real64
  end interface
  interface tutti_parameter_get
    module procedure parameter_get_real32, parameter_get_real64
  end interface
  interface tutti_gradient_set
    module procedure gradient_set_real32, gradient_set_real64
  end interface
  interface tutti_array_bind
    module procedure array_bind_real32, array_bind_real64, array_bind_int32, array_bind_int64
  end interface
  interface tutti_scalar_bind
    module procedure scalar_bind_real32, scalar_bind_real64, scalar_bind_int32, scalar_bind_int64
  end interface
  interface tutti_inspection_add
    module procedure inspection_add_real32, inspection_add_real64
  end interface

  interface
    integer(c_int) function c_init(argc, argv) bind(c, name="tutti_init")
      import
      type(c_ptr), value :: argc
      type(c_ptr), value :: argv
    end function
    integer(c_int) function c_finalize() bind(c, name="tutti_finalize")
      import
    end function
    integer(c_int) function c_fortran_topology_create(communicator, model_parallel, topology) &
      bind(c, name="tutti_fortran_topology_create")
      import
      integer(c_int), value :: communicator
      integer(c_int), value :: model_parallel
      type(tutti_topology), intent(inout) :: topology
    end function
    integer(c_int) function c_topology_ranks(topology, data_rank, &
      data_parallel, model_rank, model_parallel) bind(c, name="tutti_topology_ranks")
      import
      type(tutti_topology), value :: topology
      integer(c_int), intent(out) :: data_rank
      integer(c_int), intent(out) :: data_parallel
      integer(c_int), intent(out) :: model_rank
      integer(c_int), intent(out) :: model_parallel
    end function
    integer(c_int) function c_topology_destroy(topology) bind(c, name="tutti_topology_destroy")
      import
      type(tutti_topology), intent(inout) :: topology
    end function
    integer(c_int) function c_optimizer_create_adam(topology, name, optimizer) &
      bind(c, name="tutti_optimizer_create_adam")
      import
      type(tutti_topology), value :: topology
      character(kind=c_char), intent(in) :: name(*)
      type(tutti_optimizer), intent(inout) :: optimizer
    end function
    integer(c_int) function c_optimizer_create_callbacks(topology, name, callbacks, optimizer) &
      bind(c, name="tutti_optimizer_create_callbacks")
      import
      type(tutti_topology), value :: topology
      character(kind=c_char), intent(in) :: name(*)
      type(tutti_callbacks), intent(in) :: callbacks
      type(tutti_optimizer), intent(inout) :: optimizer
    end function
    integer(c_int) function c_optimizer_set_number(optimizer, setting, value) &
      bind(c, name="tutti_optimizer_set_number")
      import
      type(tutti_optimizer), value :: optimizer
      character(kind=c_char), intent(in) :: setting(*)
      real(c_double), value :: value
    end function
    integer(c_int) function c_optimizer_set_text(optimizer, setting, text) &
      bind(c, name="tutti_optimizer_set_text")
      import
      type(tutti_optimizer), value :: optimizer
      character(kind=c_char), intent(in) :: setting(*)
      character(kind=c_char), intent(in) :: text(*)
    end function
    integer(c_int) function c_optimizer_destroy(optimizer) bind(c, name="tutti_optimizer_destroy")
      import
      type(tutti_optimizer), intent(inout) :: optimizer
    end function
    integer(c_int) function c_parameter_add(optimizer, name, type, axes, &
      shape, placement, parameter) bind(c, name="tutti_parameter_add")
      import
      type(tutti_optimizer), value :: optimizer
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: type
      integer(c_int), value :: axes
      integer(c_int64_t), intent(in) :: shape(*)
      integer(c_int), value :: placement
      integer(c_int64_t), intent(inout) :: parameter
    end function
    integer(c_int) function c_parameter_piece(optimizer, parameter, begin, extent, elements) &
      bind(c, name="tutti_parameter_piece")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      integer(c_int64_t), intent(out) :: begin
      integer(c_int64_t), intent(out) :: extent
      integer(c_int64_t), intent(out) :: elements
    end function
    integer(c_int) function c_parameter_set(optimizer, parameter, type, space, values) &
      bind(c, name="tutti_parameter_set")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      integer(c_int), value :: type
      integer(c_int), value :: space
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_parameter_bind(optimizer, parameter, type, space, values) &
      bind(c, name="tutti_parameter_bind")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      integer(c_int), value :: type
      integer(c_int), value :: space
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_parameter_values(optimizer, parameter, values) &
      bind(c, name="tutti_parameter_values")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      type(c_ptr), intent(out) :: values
    end function
    integer(c_int) function c_parameter_get(optimizer, parameter, type, space, values) &
      bind(c, name="tutti_parameter_get")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      integer(c_int), value :: type
      integer(c_int), value :: space
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_gradient_set(optimizer, parameter, type, space, values) &
      bind(c, name="tutti_gradient_set")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      integer(c_int), value :: type
      integer(c_int), value :: space
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_gradient_values(optimizer, parameter, values) &
      bind(c, name="tutti_gradient_values")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      type(c_ptr), intent(out) :: values
    end function
    integer(c_int) function c_inspection_add(inspection, parameter, first, count, part, &
      type, space, values) bind(c, name="tutti_inspection_add")
      import
      type(tutti_inspection), value :: inspection
      integer(c_int64_t), value :: parameter
      integer(c_int64_t), value :: first
      integer(c_int64_t), value :: count
      integer(c_int), value :: part
      integer(c_int), value :: type
      integer(c_int), value :: space
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_state_bind(optimizer, parameter, array, values) &
      bind(c, name="tutti_state_bind")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      character(kind=c_char), intent(in) :: array(*)
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_run_create(topology, run) bind(c, name="tutti_run_create")
      import
      type(tutti_topology), value :: topology
      type(tutti_run), intent(inout) :: run
    end function
    integer(c_int) function c_run_set_number(run, setting, value) &
      bind(c, name="tutti_run_set_number")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: setting(*)
      real(c_double), value :: value
    end function
    integer(c_int) function c_run_set_text(run, setting, text) bind(c, name="tutti_run_set_text")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: setting(*)
      character(kind=c_char), intent(in) :: text(*)
    end function
    integer(c_int) function c_run_add_optimizer(run, optimizer) &
      bind(c, name="tutti_run_add_optimizer")
      import
      type(tutti_run), value :: run
      type(tutti_optimizer), value :: optimizer
    end function
    integer(c_int) function c_run_start(run) bind(c, name="tutti_run_start")
      import
      type(tutti_run), value :: run
    end function
    integer(c_int) function c_run_position(run, step, attempt, samples) &
      bind(c, name="tutti_run_position")
      import
      type(tutti_run), value :: run
      integer(c_int64_t), intent(out) :: step
      integer(c_int64_t), intent(out) :: attempt
      integer(c_int64_t), intent(out) :: samples
    end function
    integer(c_int) function c_run_digest(run, digest) bind(c, name="tutti_run_digest")
      import
      type(tutti_run), value :: run
      integer(c_int64_t), intent(out) :: digest
    end function
    integer(c_int) function c_run_request_stop(run) bind(c, name="tutti_run_request_stop")
      import
      type(tutti_run), value :: run
    end function
    integer(c_int) function c_run_destroy(run) bind(c, name="tutti_run_destroy")
      import
      type(tutti_run), intent(inout) :: run
    end function
    integer(c_int) function c_window_samples(run, micro, begin, end) &
      bind(c, name="tutti_window_samples")
      import
      type(tutti_run), value :: run
      integer(c_int64_t), value :: micro
      integer(c_int64_t), intent(out) :: begin
      integer(c_int64_t), intent(out) :: end
    end function
    integer(c_int) function c_window_scale(run, loss_scale, gradient_scale) &
      bind(c, name="tutti_window_scale")
      import
      type(tutti_run), value :: run
      real(c_double), intent(out) :: loss_scale
      real(c_double), intent(out) :: gradient_scale
    end function
    integer(c_int) function c_window_add(run, loss_sum, samples) bind(c, name="tutti_window_add")
      import
      type(tutti_run), value :: run
      real(c_double), value :: loss_sum
      integer(c_int64_t), value :: samples
    end function
    integer(c_int) function c_window_fail(run, code, text) bind(c, name="tutti_window_fail")
      import
      type(tutti_run), value :: run
      integer(c_int64_t), value :: code
      character(kind=c_char), intent(in) :: text(*)
    end function
    integer(c_int) function c_step(run, outcome) bind(c, name="tutti_step")
      import
      type(tutti_run), value :: run
      type(tutti_outcome), intent(inout) :: outcome
    end function
    integer(c_int) function c_step_message(run, message) bind(c, name="tutti_step_message")
      import
      type(tutti_run), value :: run
      type(c_ptr), intent(out) :: message
    end function
    integer(c_int) function c_step_incident(run, incident) bind(c, name="tutti_step_incident")
      import
      type(tutti_run), value :: run
      type(tutti_incident), intent(inout) :: incident
    end function
    integer(c_int) function c_checkpoint_save(run, directory, file) &
      bind(c, name="tutti_checkpoint_save")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: directory(*)
      type(c_ptr), intent(out) :: file
    end function
    integer(c_int) function c_checkpoint_latest(run, directory, file) &
      bind(c, name="tutti_checkpoint_latest")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: directory(*)
      type(c_ptr), intent(out) :: file
    end function
    integer(c_int) function c_checkpoint_restore(run, file) &
      bind(c, name="tutti_checkpoint_restore")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: file(*)
    end function
    integer(c_int) function c_checkpoint_restore_latest(run, directory, file) &
      bind(c, name="tutti_checkpoint_restore_latest")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: directory(*)
      type(c_ptr), intent(out) :: file
    end function
    integer(c_int) function c_checkpoint_configuration(run, file, text) &
      bind(c, name="tutti_checkpoint_configuration")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: file(*)
      type(c_ptr), intent(out) :: text
    end function
    integer(c_int) function c_run_watch(run, seconds, lost, context) bind(c, name="tutti_run_watch")
      import
      type(tutti_run), value :: run
      real(c_double), value :: seconds
      type(c_funptr), value :: lost
      type(c_ptr), value :: context
    end function
    integer(c_int) function c_run_recompute(run, recompute, arithmetic, context) &
      bind(c, name="tutti_run_recompute")
      import
      type(tutti_run), value :: run
      type(c_funptr), value :: recompute
      character(kind=c_char), intent(in) :: arithmetic(*)
      type(c_ptr), value :: context
    end function
    integer(c_int) function c_run_watched(run, watched, description) &
      bind(c, name="tutti_run_watched")
      import
      type(tutti_run), value :: run
      integer(c_int), intent(out) :: watched
      type(c_ptr), intent(out) :: description
    end function
    integer(c_int) function c_progress(run) bind(c, name="tutti_progress")
      import
      type(tutti_run), value :: run
    end function
    integer(c_int) function c_step_incident_json(run, json) bind(c, name="tutti_step_incident_json")
      import
      type(tutti_run), value :: run
      type(c_ptr), intent(out) :: json
    end function
    integer(c_int) function c_checkpoint_start(run, directory) &
      bind(c, name="tutti_checkpoint_start")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: directory(*)
    end function
    integer(c_int) function c_checkpoint_finish(run, file) bind(c, name="tutti_checkpoint_finish")
      import
      type(tutti_run), value :: run
      type(c_ptr), intent(out) :: file
    end function
    integer(c_int) function c_checkpoint_restore_weights(run, file) &
      bind(c, name="tutti_checkpoint_restore_weights")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: file(*)
    end function
    integer(c_int) function c_fortran_array_bind(run, name, type, axes, shape, begins, &
      begin, ranks, extent, contiguous, values) &
      bind(c, name="tutti_fortran_array_bind")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: type
      integer(c_int), value :: axes
      integer(c_int64_t), intent(in) :: shape(*)
      integer(c_int), value :: begins
      integer(c_int64_t), intent(in) :: begin(*)
      integer(c_int), value :: ranks
      integer(c_int64_t), intent(in) :: extent(*)
      integer(c_int), value :: contiguous
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_scalar_bind(run, name, type, values) bind(c, name="tutti_scalar_bind")
      import
      type(tutti_run), value :: run
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: type
      type(c_ptr), value :: values
    end function
    integer(c_int) function c_fortran_check(optimizer, parameter, size, &
      contiguous, type, in_window) bind(c, name="tutti_fortran_check")
      import
      type(tutti_optimizer), value :: optimizer
      integer(c_int64_t), value :: parameter
      integer(c_int64_t), value :: size
      integer(c_int), value :: contiguous
      integer(c_int), value :: type
      integer(c_int), value :: in_window
    end function
    type(c_ptr) function c_last_error_message() bind(c, name="tutti_last_error_message")
      import
    end function
    type(c_ptr) function c_status_name(status) bind(c, name="tutti_status_name")
      import
      integer(c_int), value :: status
    end function
    type(c_ptr) function c_verdict_name(verdict) bind(c, name="tutti_verdict_name")
      import
      integer(c_int), value :: verdict
    end function
    type(c_ptr) function c_reason_name(reason) bind(c, name="tutti_reason_name")
      import
      integer(c_int), value :: reason
    end function
    type(c_ptr) function c_stage_name(stage) bind(c, name="tutti_stage_name")
      import
      integer(c_int), value :: stage
    end function
    integer(c_size_t) function c_strlen(text) bind(c, name="strlen")
      import
      type(c_ptr), value :: text
    end function
  end interface

contains

  ! --- what all calls share ----------------------------------------------------------------------

  subroutine finish(status, ierr)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: ierr
    if (present(ierr)) then
      ierr = status
    else if (status /= TUTTI_SUCCESS) then
      write (error_unit, "(a)") "tutti: " // tutti_last_error_message()
      error stop 1
    end if
  end subroutine

  !> A copy of a C string; "" for NULL.
  function from_c(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i, length
    length = 0
    if (c_associated(pointer)) length = int(c_strlen(pointer))
    allocate (character(length) :: text)
    if (length == 0) return
    call c_f_pointer(pointer, letters, [length])
    do i = 1, length
      text(i:i) = letters(i)
    end do
  end function

  function to_c(text) result(terminated)
    character(*), intent(in) :: text
    character(:), allocatable :: terminated
    terminated = trim(text) // c_null_char
  end function

  !> Before an array of `count` elements is handed over.
  integer(c_int) function check(optimizer, parameter, count, contiguous, type, in_window)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter, count
    logical, intent(in) :: contiguous, in_window
    integer(c_int), intent(in) :: type
    check = c_fortran_check(optimizer, parameter, count, merge(1_c_int, 0_c_int, contiguous), &
      type, merge(1_c_int, 0_c_int, in_window))
  end function

  ! --- status and lifetime -----------------------------------------------------------------------

  function tutti_last_error_message() result(text)
    character(:), allocatable :: text
    text = from_c(c_last_error_message())
  end function

  function tutti_status_name(status) result(text)
    integer(c_int), intent(in) :: status
    character(:), allocatable :: text
    text = from_c(c_status_name(status))
  end function

  function tutti_verdict_name(verdict) result(text)
    integer(c_int), intent(in) :: verdict
    character(:), allocatable :: text
    text = from_c(c_verdict_name(verdict))
  end function

  function tutti_reason_name(reason) result(text)
    integer(c_int), intent(in) :: reason
    character(:), allocatable :: text
    text = from_c(c_reason_name(reason))
  end function

  function tutti_stage_name(stage) result(text)
    integer(c_int), intent(in) :: stage
    character(:), allocatable :: text
    text = from_c(c_stage_name(stage))
  end function

  subroutine tutti_init(ierr)
    integer, intent(out), optional :: ierr
    call finish(c_init(c_null_ptr, c_null_ptr), ierr)
  end subroutine

  subroutine tutti_finalize(ierr)
    integer, intent(out), optional :: ierr
    call finish(c_finalize(), ierr)
  end subroutine

  ! --- topology ----------------------------------------------------------------------------------

  subroutine topology_create_f08(communicator, model_parallel, topology, ierr)
    type(MPI_Comm), intent(in) :: communicator
    integer, intent(in) :: model_parallel
    type(tutti_topology), intent(inout) :: topology
    integer, intent(out), optional :: ierr
    call topology_create_integer(communicator%MPI_VAL, model_parallel, topology, ierr)
  end subroutine

  subroutine topology_create_integer(communicator, model_parallel, topology, ierr)
    integer, intent(in) :: communicator
    integer, intent(in) :: model_parallel
    type(tutti_topology), intent(inout) :: topology
    integer, intent(out), optional :: ierr
    call finish(c_fortran_topology_create(communicator, model_parallel, topology), ierr)
  end subroutine

  subroutine tutti_topology_ranks(topology, data_rank, data_parallel, &
      model_rank, model_parallel, ierr)
    type(tutti_topology), intent(in) :: topology
    integer, intent(out) :: data_rank, data_parallel, model_rank, model_parallel
    integer, intent(out), optional :: ierr
    call finish(c_topology_ranks(topology, data_rank, data_parallel, model_rank, model_parallel), &
      ierr)
  end subroutine

  subroutine tutti_topology_destroy(topology, ierr)
    type(tutti_topology), intent(inout) :: topology
    integer, intent(out), optional :: ierr
    call finish(c_topology_destroy(topology), ierr)
  end subroutine

  ! --- optimizers --------------------------------------------------------------------------------

  subroutine tutti_optimizer_create_adam(topology, name, optimizer, ierr)
    type(tutti_topology), intent(in) :: topology
    character(*), intent(in) :: name
    type(tutti_optimizer), intent(inout) :: optimizer
    integer, intent(out), optional :: ierr
    call finish(c_optimizer_create_adam(topology, to_c(name), optimizer), ierr)
  end subroutine

  subroutine tutti_optimizer_create_callbacks(topology, name, callbacks, optimizer, ierr)
    type(tutti_topology), intent(in) :: topology
    character(*), intent(in) :: name
    type(tutti_callbacks), intent(in) :: callbacks
    type(tutti_optimizer), intent(inout) :: optimizer
    integer, intent(out), optional :: ierr
    call finish(c_optimizer_create_callbacks(topology, to_c(name), callbacks, optimizer), ierr)
  end subroutine

  subroutine optimizer_set_real64(optimizer, setting, value, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    character(*), intent(in) :: setting
    real(real64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call finish(c_optimizer_set_number(optimizer, to_c(setting), real(value, c_double)), ierr)
  end subroutine

  subroutine optimizer_set_int32(optimizer, setting, value, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    character(*), intent(in) :: setting
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: ierr
    call finish(c_optimizer_set_number(optimizer, to_c(setting), real(value, c_double)), ierr)
  end subroutine

  subroutine tutti_optimizer_set_text(optimizer, setting, text, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    character(*), intent(in) :: setting
    character(*), intent(in) :: text
    integer, intent(out), optional :: ierr
    call finish(c_optimizer_set_text(optimizer, to_c(setting), to_c(text)), ierr)
  end subroutine

  subroutine tutti_optimizer_destroy(optimizer, ierr)
    type(tutti_optimizer), intent(inout) :: optimizer
    integer, intent(out), optional :: ierr
    call finish(c_optimizer_destroy(optimizer), ierr)
  end subroutine

  ! --- parameters and gradients ------------------------------------------------------------------

  subroutine parameter_add_int64(optimizer, name, type, shape, placement, parameter, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    character(*), intent(in) :: name
    integer(c_int), intent(in) :: type
    integer(int64), intent(in) :: shape(:)
    integer, intent(in) :: placement
    integer(c_int64_t), intent(inout) :: parameter
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: reversed(size(shape))
    integer(c_int) :: axis
    reversed = shape(size(shape):1:-1)
    axis = placement
    if (placement >= 1) axis = size(shape) - placement  ! too large a dimension: refused as an axis
    if (placement > size(shape) .or. placement == 0) axis = size(shape)
    call finish(c_parameter_add(optimizer, to_c(name), type, int(size(shape), c_int), reversed, &
      axis, parameter), ierr)
  end subroutine

  subroutine parameter_add_int32(optimizer, name, type, shape, placement, parameter, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    character(*), intent(in) :: name
    integer(c_int), intent(in) :: type
    integer(int32), intent(in) :: shape(:)
    integer, intent(in) :: placement
    integer(c_int64_t), intent(inout) :: parameter
    integer, intent(out), optional :: ierr
    call parameter_add_int64(optimizer, name, type, int(shape, int64), placement, parameter, ierr)
  end subroutine

  subroutine tutti_parameter_piece(optimizer, parameter, begin, extent, elements, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    integer(c_int64_t), intent(out) :: begin, extent, elements
    integer, intent(out), optional :: ierr
    call finish(c_parameter_piece(optimizer, parameter, begin, extent, elements), ierr)
    begin = begin + 1
  end subroutine

  subroutine parameter_set_real32(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real32), intent(in), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), .true., -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_set(optimizer, parameter, TUTTI_FP32, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine parameter_bind_real32(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real32), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), is_contiguous(values), -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_bind(optimizer, parameter, TUTTI_FP32, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine parameter_get_real32(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real32), intent(inout), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), .true., -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_get(optimizer, parameter, TUTTI_FP32, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine gradient_set_real32(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real32), intent(in), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), .true., -1, &
      .true.)
    if (status == TUTTI_SUCCESS) &
      status = c_gradient_set(optimizer, parameter, TUTTI_FP32, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine parameter_set_real64(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real64), intent(in), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), .true., -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_set(optimizer, parameter, TUTTI_FP64, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine parameter_bind_real64(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real64), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), is_contiguous(values), -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_bind(optimizer, parameter, TUTTI_FP64, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine parameter_get_real64(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real64), intent(inout), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), .true., -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_get(optimizer, parameter, TUTTI_FP64, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  subroutine gradient_set_real64(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real64), intent(in), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), .true., -1, &
      .true.)
    if (status == TUTTI_SUCCESS) &
      status = c_gradient_set(optimizer, parameter, TUTTI_FP64, TUTTI_HOST, c_loc(values))
    call finish(status, ierr)
  end subroutine

  !> For a parameter of type fp32.
  subroutine tutti_parameter_values(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real32), pointer, contiguous, intent(out) :: values(:)
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: begin, extent, elements
    integer(c_int) :: status
    type(c_ptr) :: pointer
    nullify (values)
    status = check(optimizer, parameter, -1_int64, .true., TUTTI_FP32, .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_piece(optimizer, parameter, begin, extent, elements)
    if (status == TUTTI_SUCCESS) status = c_parameter_values(optimizer, parameter, pointer)
    if (status == TUTTI_SUCCESS) call c_f_pointer(pointer, values, [elements])
    call finish(status, ierr)
  end subroutine

  !> For a parameter of type fp32.
  subroutine tutti_gradient_values(optimizer, parameter, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    real(real32), pointer, contiguous, intent(out) :: values(:)
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: begin, extent, elements
    integer(c_int) :: status
    type(c_ptr) :: pointer
    nullify (values)
    status = check(optimizer, parameter, -1_int64, .true., TUTTI_FP32, .true.)
    if (status == TUTTI_SUCCESS) &
      status = c_parameter_piece(optimizer, parameter, begin, extent, elements)
    if (status == TUTTI_SUCCESS) status = c_gradient_values(optimizer, parameter, pointer)
    if (status == TUTTI_SUCCESS) call c_f_pointer(pointer, values, [elements])
    call finish(status, ierr)
  end subroutine

  ! --- optimizers of the caller's own ------------------------------------------------------------

  !> Shows all of `values`; `first` counts from 0.
  subroutine inspection_add_real32(inspection, parameter, first, part, values, ierr)
    type(tutti_inspection), intent(in) :: inspection
    integer(c_int64_t), intent(in) :: parameter, first
    integer(c_int), intent(in) :: part
    real(real32), intent(in), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    call finish(c_inspection_add(inspection, parameter, first, size(values, kind=int64), part, &
      TUTTI_FP32, TUTTI_HOST, c_loc(values)), ierr)
  end subroutine

  subroutine inspection_add_real64(inspection, parameter, first, part, values, ierr)
    type(tutti_inspection), intent(in) :: inspection
    integer(c_int64_t), intent(in) :: parameter, first
    integer(c_int), intent(in) :: part
    real(real64), intent(in), target, contiguous :: values(..)
    integer, intent(out), optional :: ierr
    call finish(c_inspection_add(inspection, parameter, first, size(values, kind=int64), part, &
      TUTTI_FP64, TUTTI_HOST, c_loc(values)), ierr)
  end subroutine

  subroutine tutti_state_bind(optimizer, parameter, array, values, ierr)
    type(tutti_optimizer), intent(in) :: optimizer
    integer(c_int64_t), intent(in) :: parameter
    character(*), intent(in) :: array
    real(real32), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    status = check(optimizer, parameter, size(values, kind=int64), is_contiguous(values), -1, &
      .false.)
    if (status == TUTTI_SUCCESS) &
      status = c_state_bind(optimizer, parameter, to_c(array), c_loc(values))
    call finish(status, ierr)
  end subroutine

  ! --- arrays of the caller's own ----------------------------------------------------------------

  !> `values` is this rank's part of an array of shape `global`, from index `begin` (from 1 along
  !> each dimension) on; an empty one: this rank holds nothing.
  subroutine array_bind_real32(run, name, global, begin, values, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer, intent(in) :: global(:), begin(:)
    real(real32), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    call finish(bind_array(run, name, TUTTI_FP32, global, begin, shape(values, c_int64_t), &
      is_contiguous(values), c_loc(values)), ierr)
  end subroutine

  subroutine array_bind_real64(run, name, global, begin, values, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer, intent(in) :: global(:), begin(:)
    real(real64), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    call finish(bind_array(run, name, TUTTI_FP64, global, begin, shape(values, c_int64_t), &
      is_contiguous(values), c_loc(values)), ierr)
  end subroutine

  subroutine array_bind_int32(run, name, global, begin, values, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer, intent(in) :: global(:), begin(:)
    integer(int32), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    call finish(bind_array(run, name, TUTTI_INT32, global, begin, shape(values, c_int64_t), &
      is_contiguous(values), c_loc(values)), ierr)
  end subroutine

  subroutine array_bind_int64(run, name, global, begin, values, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer, intent(in) :: global(:), begin(:)
    integer(int64), intent(inout), target :: values(..)
    integer, intent(out), optional :: ierr
    call finish(bind_array(run, name, TUTTI_INT64, global, begin, shape(values, c_int64_t), &
      is_contiguous(values), c_loc(values)), ierr)
  end subroutine

  integer(c_int) function bind_array(run, name, type, global, begin, extent, contiguous, values)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer(c_int), intent(in) :: type
    integer, intent(in) :: global(:), begin(:)
    integer(c_int64_t), intent(in) :: extent(:)
    logical, intent(in) :: contiguous
    type(c_ptr), intent(in) :: values
    bind_array = c_fortran_array_bind(run, to_c(name), type, size(global, kind=c_int), &
      int(global, c_int64_t), size(begin, kind=c_int), int(begin, c_int64_t), &
      size(extent, kind=c_int), extent, merge(1_c_int, 0_c_int, contiguous), values)
  end function

  subroutine scalar_bind_real32(run, name, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    real(real32), intent(inout), target :: value
    integer, intent(out), optional :: ierr
    call finish(c_scalar_bind(run, to_c(name), TUTTI_FP32, c_loc(value)), ierr)
  end subroutine

  subroutine scalar_bind_real64(run, name, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    real(real64), intent(inout), target :: value
    integer, intent(out), optional :: ierr
    call finish(c_scalar_bind(run, to_c(name), TUTTI_FP64, c_loc(value)), ierr)
  end subroutine

  subroutine scalar_bind_int32(run, name, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer(int32), intent(inout), target :: value
    integer, intent(out), optional :: ierr
    call finish(c_scalar_bind(run, to_c(name), TUTTI_INT32, c_loc(value)), ierr)
  end subroutine

  subroutine scalar_bind_int64(run, name, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: name
    integer(int64), intent(inout), target :: value
    integer, intent(out), optional :: ierr
    call finish(c_scalar_bind(run, to_c(name), TUTTI_INT64, c_loc(value)), ierr)
  end subroutine

  ! --- the run -----------------------------------------------------------------------------------

  subroutine tutti_run_create(topology, run, ierr)
    type(tutti_topology), intent(in) :: topology
    type(tutti_run), intent(inout) :: run
    integer, intent(out), optional :: ierr
    call finish(c_run_create(topology, run), ierr)
  end subroutine

  subroutine run_set_real64(run, setting, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: setting
    real(real64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call finish(c_run_set_number(run, to_c(setting), real(value, c_double)), ierr)
  end subroutine

  subroutine run_set_int32(run, setting, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: setting
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: ierr
    call finish(c_run_set_number(run, to_c(setting), real(value, c_double)), ierr)
  end subroutine

  subroutine run_set_int64(run, setting, value, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: setting
    integer(int64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call finish(c_run_set_number(run, to_c(setting), real(value, c_double)), ierr)
  end subroutine

  subroutine tutti_run_set_text(run, setting, text, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: setting
    character(*), intent(in) :: text
    integer, intent(out), optional :: ierr
    call finish(c_run_set_text(run, to_c(setting), to_c(text)), ierr)
  end subroutine

  subroutine tutti_run_add_optimizer(run, optimizer, ierr)
    type(tutti_run), intent(in) :: run
    type(tutti_optimizer), intent(in) :: optimizer
    integer, intent(out), optional :: ierr
    call finish(c_run_add_optimizer(run, optimizer), ierr)
  end subroutine

  subroutine tutti_run_start(run, ierr)
    type(tutti_run), intent(in) :: run
    integer, intent(out), optional :: ierr
    call finish(c_run_start(run), ierr)
  end subroutine

  subroutine tutti_run_position(run, step, attempt, samples, ierr)
    type(tutti_run), intent(in) :: run
    integer(c_int64_t), intent(out) :: step, attempt, samples
    integer, intent(out), optional :: ierr
    call finish(c_run_position(run, step, attempt, samples), ierr)
  end subroutine

  subroutine tutti_run_digest(run, digest, ierr)
    type(tutti_run), intent(in) :: run
    integer(c_int64_t), intent(out) :: digest
    integer, intent(out), optional :: ierr
    call finish(c_run_digest(run, digest), ierr)
  end subroutine

  !> `lost`: c_funloc of a bind(c) procedure (context by value, a tutti_loss); without it a loss is
  !> told on standard error, and a stall ends the process with exit code 4.
  subroutine tutti_run_watch(run, seconds, lost, context, ierr)
    type(tutti_run), intent(in) :: run
    real(real64), intent(in) :: seconds
    type(c_funptr), intent(in), optional :: lost
    type(c_ptr), intent(in), optional :: context
    integer, intent(out), optional :: ierr
    type(c_funptr) :: procedure
    type(c_ptr) :: with
    procedure = c_null_funptr
    with = c_null_ptr
    if (present(lost)) procedure = lost
    if (present(context)) with = context
    call finish(c_run_watch(run, real(seconds, c_double), procedure, with), ierr)
  end subroutine

  !> recompute: c_funloc of a bind(c) function with the interface of tutti_recompute in tutti.h.
  subroutine tutti_run_recompute(run, recompute, arithmetic, context, ierr)
    type(tutti_run), intent(in) :: run
    type(c_funptr), intent(in) :: recompute
    character(*), intent(in), optional :: arithmetic
    type(c_ptr), intent(in), optional :: context
    integer, intent(out), optional :: ierr
    character(:), allocatable :: name
    type(c_ptr) :: with
    name = ""
    with = c_null_ptr
    if (present(arithmetic)) name = arithmetic
    if (present(context)) with = context
    call finish(c_run_recompute(run, recompute, name // c_null_char, with), ierr)
  end subroutine

  subroutine tutti_run_watched(run, watched, description, ierr)
    type(tutti_run), intent(in) :: run
    logical, intent(out) :: watched
    character(:), allocatable, intent(out) :: description
    integer, intent(out), optional :: ierr
    integer(c_int) :: status, running
    type(c_ptr) :: pointer
    running = 0
    pointer = c_null_ptr
    status = c_run_watched(run, running, pointer)
    watched = running /= 0
    description = ""
    if (status == TUTTI_SUCCESS) description = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  subroutine tutti_progress(run, ierr)
    type(tutti_run), intent(in) :: run
    integer, intent(out), optional :: ierr
    call finish(c_progress(run), ierr)
  end subroutine

  subroutine tutti_run_request_stop(run, ierr)
    type(tutti_run), intent(in) :: run
    integer, intent(out), optional :: ierr
    call finish(c_run_request_stop(run), ierr)
  end subroutine

  subroutine tutti_run_destroy(run, ierr)
    type(tutti_run), intent(inout) :: run
    integer, intent(out), optional :: ierr
    call finish(c_run_destroy(run), ierr)
  end subroutine

  ! --- the window --------------------------------------------------------------------------------

  subroutine tutti_window_samples(run, micro, begin, end, ierr)
    type(tutti_run), intent(in) :: run
    integer(c_int64_t), intent(in) :: micro
    integer(c_int64_t), intent(out) :: begin, end
    integer, intent(out), optional :: ierr
    call finish(c_window_samples(run, micro, begin, end), ierr)
  end subroutine

  subroutine tutti_window_scale(run, loss_scale, gradient_scale, ierr)
    type(tutti_run), intent(in) :: run
    real(real64), intent(out) :: loss_scale, gradient_scale
    integer, intent(out), optional :: ierr
    call finish(c_window_scale(run, loss_scale, gradient_scale), ierr)
  end subroutine

  subroutine window_add_int32(run, loss_sum, samples, ierr)
    type(tutti_run), intent(in) :: run
    real(real64), intent(in) :: loss_sum
    integer(int32), intent(in) :: samples
    integer, intent(out), optional :: ierr
    call finish(c_window_add(run, loss_sum, int(samples, c_int64_t)), ierr)
  end subroutine

  subroutine window_add_int64(run, loss_sum, samples, ierr)
    type(tutti_run), intent(in) :: run
    real(real64), intent(in) :: loss_sum
    integer(int64), intent(in) :: samples
    integer, intent(out), optional :: ierr
    call finish(c_window_add(run, loss_sum, int(samples, c_int64_t)), ierr)
  end subroutine

  subroutine window_fail_int32(run, code, text, ierr)
    type(tutti_run), intent(in) :: run
    integer(int32), intent(in) :: code
    character(*), intent(in) :: text
    integer, intent(out), optional :: ierr
    call finish(c_window_fail(run, int(code, c_int64_t), to_c(text)), ierr)
  end subroutine

  subroutine window_fail_int64(run, code, text, ierr)
    type(tutti_run), intent(in) :: run
    integer(int64), intent(in) :: code
    character(*), intent(in) :: text
    integer, intent(out), optional :: ierr
    call finish(c_window_fail(run, int(code, c_int64_t), to_c(text)), ierr)
  end subroutine

  ! --- the step ----------------------------------------------------------------------------------

  subroutine tutti_step(run, outcome, ierr)
    type(tutti_run), intent(in) :: run
    type(tutti_outcome), intent(inout) :: outcome
    integer, intent(out), optional :: ierr
    call finish(c_step(run, outcome), ierr)
  end subroutine

  subroutine tutti_step_message(run, message, ierr)
    type(tutti_run), intent(in) :: run
    character(:), allocatable, intent(out) :: message
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_step_message(run, pointer)
    message = ""
    if (status == TUTTI_SUCCESS) message = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  subroutine tutti_step_incident_json(run, json, ierr)
    type(tutti_run), intent(in) :: run
    character(:), allocatable, intent(out) :: json
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_step_incident_json(run, pointer)
    json = ""
    if (status == TUTTI_SUCCESS) json = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  subroutine tutti_step_incident(run, incident, ierr)
    type(tutti_run), intent(in) :: run
    type(tutti_incident), intent(inout) :: incident
    integer, intent(out), optional :: ierr
    call finish(c_step_incident(run, incident), ierr)
  end subroutine

  ! --- checkpoints -------------------------------------------------------------------------------

  subroutine tutti_checkpoint_save(run, directory, file, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: directory
    character(:), allocatable, intent(out) :: file
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_checkpoint_save(run, to_c(directory), pointer)
    file = ""
    if (status == TUTTI_SUCCESS) file = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  subroutine tutti_checkpoint_start(run, directory, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: directory
    integer, intent(out), optional :: ierr
    call finish(c_checkpoint_start(run, to_c(directory)), ierr)
  end subroutine

  !> `file` is "" if no save was in flight.
  subroutine tutti_checkpoint_finish(run, file, ierr)
    type(tutti_run), intent(in) :: run
    character(:), allocatable, intent(out) :: file
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_checkpoint_finish(run, pointer)
    file = ""
    if (status == TUTTI_SUCCESS) file = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  !> `file` is "" if there is none.
  subroutine tutti_checkpoint_latest(run, directory, file, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: directory
    character(:), allocatable, intent(out) :: file
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_checkpoint_latest(run, to_c(directory), pointer)
    file = ""
    if (status == TUTTI_SUCCESS) file = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  subroutine tutti_checkpoint_restore(run, file, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: file
    integer, intent(out), optional :: ierr
    call finish(c_checkpoint_restore(run, to_c(file)), ierr)
  end subroutine

  !> `file` is "" if there is none.
  subroutine tutti_checkpoint_restore_latest(run, directory, file, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: directory
    character(:), allocatable, intent(out) :: file
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_checkpoint_restore_latest(run, to_c(directory), pointer)
    file = ""
    if (status == TUTTI_SUCCESS) file = from_c(pointer)
    call finish(status, ierr)
  end subroutine

  subroutine tutti_checkpoint_restore_weights(run, file, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: file
    integer, intent(out), optional :: ierr
    call finish(c_checkpoint_restore_weights(run, to_c(file)), ierr)
  end subroutine

  subroutine tutti_checkpoint_configuration(run, file, text, ierr)
    type(tutti_run), intent(in) :: run
    character(*), intent(in) :: file
    character(:), allocatable, intent(out) :: text
    integer, intent(out), optional :: ierr
    integer(c_int) :: status
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    status = c_checkpoint_configuration(run, to_c(file), pointer)
    text = ""
    if (status == TUTTI_SUCCESS) text = from_c(pointer)
    call finish(status, ierr)
  end subroutine
end module tutti
