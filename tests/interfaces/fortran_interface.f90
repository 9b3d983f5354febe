! SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
! The Fortran module over real ranks: arrays and strings both ways, one outcome on all ranks when
! one has a nonfinite gradient, an optimizer of the program's own, checkpoints.
! usage: fortran_interface DIRECTORY, an empty one that all ranks see
module own_optimizer
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: real32, real64
  use tutti
  implicit none

  integer, parameter :: n = 4500
  type :: sgd
    real(real32) :: w(n) = 2, gradient(n) = 0, staged(n) = 0
    integer :: published = 0, restored = 0
  end type
  integer :: world_rank = 0
  type :: computation
    type(tutti_optimizer) :: adam
    integer(tutti_index) :: p = -1
  end type

contains

  !> Without what went wrong the first time.
  integer(c_int) function compute_again(context, begin, last, scale, loss_sum) bind(c)
    type(c_ptr), value :: context
    integer(c_int64_t), value :: begin, last
    real(c_double), value :: scale
    real(c_double), intent(out) :: loss_sum
    type(computation), pointer :: c
    real(real64) :: gradient(10, 20)
    integer :: ierr
    call c_f_pointer(context, c)
    gradient = scale
    loss_sum = real(last - begin, c_double)
    call tutti_gradient_set(c%adam, c%p, gradient, ierr)
    compute_again = ierr
  end function

  function state(context) result(object)
    type(c_ptr), intent(in) :: context
    type(sgd), pointer :: object
    call c_f_pointer(context, object)
  end function

  integer(c_int) function inspect(context, inspection) bind(c)
    type(c_ptr), value :: context
    type(tutti_inspection), value :: inspection
    type(sgd), pointer :: s
    integer :: ierr
    s => state(context)
    call tutti_inspection_add(inspection, 0_tutti_index, 0_tutti_index, &
      merge(TUTTI_SUM, TUTTI_COPY, world_rank == 0), s%gradient, ierr)
    inspect = ierr
  end function

  integer(c_int) function stage(context, update) bind(c)
    type(c_ptr), value :: context
    type(tutti_update), intent(in) :: update
    type(sgd), pointer :: s
    s => state(context)
    s%staged = s%w - 0.5 * real(update%grad_factor * update%learning_rate_factor) * s%gradient
    stage = 0
  end function

  subroutine publish(context) bind(c)
    type(c_ptr), value :: context
    type(sgd), pointer :: s
    s => state(context)
    s%w = s%staged
    s%published = s%published + 1
  end subroutine

  subroutine restored(context) bind(c)
    type(c_ptr), value :: context
    type(sgd), pointer :: s
    s => state(context)
    s%restored = s%restored + 1
  end subroutine
end module own_optimizer

program fortran_interface
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, int64, real32, real64
  use, intrinsic :: ieee_arithmetic
  use mpi_f08
  use tutti
  use own_optimizer
  implicit none

  interface
    subroutine tutti_fortran_sizes(sizes) bind(c)
      import :: c_int64_t
      integer(c_int64_t) :: sizes(5)
    end subroutine
  end interface

  integer :: failures = 0, ranks, worst
  character(:), allocatable :: directory
  character(512) :: argument

  call tutti_init()
  call MPI_Comm_rank(MPI_COMM_WORLD, world_rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call get_command_argument(1, argument)
  directory = trim(argument)

  call types_are_those_of_c()
  call adam_with_arrays()
  call one_rank_is_nonfinite()
  call sgd_and_checkpoints()

  call MPI_Allreduce(failures, worst, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD)
  call tutti_finalize()
  if (worst > 0) error stop 1

contains

  subroutine check(holds, what)
    logical, intent(in) :: holds
    character(*), intent(in) :: what
    if (holds) return
    write (error_unit, "(a,i0,4a)") "[rank ", world_rank, "] FAILED: ", what, "; last message: ", &
      tutti_last_error_message()
    failures = failures + 1
  end subroutine

  subroutine types_are_those_of_c()
    type(tutti_outcome) :: outcome
    type(tutti_incident) :: incident
    type(tutti_update) :: update
    type(tutti_callbacks) :: callbacks
    type(tutti_loss) :: loss
    integer(c_int64_t) :: sizes(5)
    call tutti_fortran_sizes(sizes)
    call check(all(sizes == [c_sizeof(outcome), c_sizeof(incident), c_sizeof(update), &
      c_sizeof(callbacks), c_sizeof(loss)]), "derived types have the sizes of C's")
    call check(tutti_status_name(TUTTI_HALT) == "halt", "status name")
    call check(tutti_reason_name(TUTTI_REASON_UPDATE) == "update", "reason name")
    call check(tutti_verdict_name(TUTTI_SKIP) == "skip", "verdict name")
    call check(tutti_stage_name(TUTTI_STAGE_NONE) == "none", "stage name")
    call check(TUTTI_UINT64 == 8 .and. TUTTI_SAVE_FAILED == 3, "numbers")
  end subroutine

  subroutine adam_with_arrays()
    type(tutti_topology) :: topology
    type(tutti_optimizer) :: adam
    type(tutti_run) :: run
    type(tutti_outcome) :: outcome
    integer(tutti_index) :: matrix, vector, begin, extent, elements, first, last
    real(real64), target :: weights(3, 5), copy(3, 5), section(6, 5)
    real(real32) :: gradient(7)
    real(real32), pointer, contiguous :: direct(:)
    real(real64) :: loss_scale, scale
    integer :: ierr, d, n_d, m, n_m, i

    call tutti_topology_create(MPI_COMM_WORLD%MPI_VAL, 1, topology)  ! an integer
    call tutti_topology_ranks(topology, d, n_d, m, n_m)
    call check(d == world_rank .and. n_d == ranks .and. m == 0 .and. n_m == 1, "ranks")
    call tutti_optimizer_create_adam(topology, "adam", adam)
    call tutti_optimizer_set_number(adam, "learning_rate", 0.25d0)
    call tutti_optimizer_set_number(adam, "decoupled", 1)
    call tutti_optimizer_set_number(adam, "no such setting", 1, ierr)
    call check(ierr == TUTTI_CONFIG_ERROR, "a status comes back")
    call check(index(tutti_last_error_message(), "'no such setting'") > 0, "and its message")
    call tutti_parameter_add(adam, "matrix", TUTTI_FP32, shape(weights), TUTTI_REPLICATED, matrix)
    call tutti_parameter_add(adam, "vector", TUTTI_FP32, [7], 1, vector)
    call tutti_parameter_piece(adam, vector, begin, extent, elements)
    call check(begin == 1 .and. extent == 7 .and. elements == 7, "piece")
    call tutti_parameter_add(adam, "bad", TUTTI_FP32, [7], 2, vector, ierr)
    call check(ierr == TUTTI_INVALID_ARGUMENT, "a dimension that is not there is refused")
    call tutti_parameter_add(adam, "bad", TUTTI_FP32, [7], 0, vector, ierr)
    call check(ierr == TUTTI_INVALID_ARGUMENT, "dimension 0 is refused")
    weights = reshape([(real(i, real64), i=1, 15)], shape(weights))
    call tutti_parameter_bind(adam, matrix, weights)
    section = 0
    call tutti_parameter_bind(adam, matrix, section(1:6:2, :), ierr)
    call check(ierr == TUTTI_INVALID_ARGUMENT, "a section cannot be bound")
    call tutti_parameter_set(adam, vector, [(real(i, real32), i=1, 7)])
    call tutti_parameter_set(adam, vector, [1.0, 2.0], ierr)
    call check(ierr == TUTTI_INVALID_ARGUMENT, "a short array is refused")
    call tutti_run_create(topology, run)
    call tutti_run_set_number(run, "window_samples", ranks)
    call tutti_run_set_text(run, "samples", "drop")
    call tutti_run_add_optimizer(run, adam)
    call tutti_run_start(run)

    call tutti_window_samples(run, 0_tutti_index, first, last)
    call check(first == world_rank .and. last == world_rank + 1, "one sample a rank")
    call tutti_window_scale(run, loss_scale, scale)
    call check(loss_scale == 1 .and. abs(scale * ranks - 1) < 1d-15, "scale")
    section = 7
    section(1:6:2, :) = scale
    call tutti_gradient_set(adam, matrix, section(1:6:2, :))  ! copied, so a section will do
    gradient = -real(scale, real32)
    call tutti_gradient_values(adam, vector, direct)
    direct = gradient
    call tutti_window_add(run, 3d0, 1)
    call tutti_step(run, outcome)
    call check(outcome%verdict == TUTTI_COMMIT .and. outcome%step == 1, "commit")
    call check(outcome%samples == ranks .and. abs(outcome%loss - 3) < 1d-12, "samples and loss")
    call check(all(abs(weights - reshape([(i - 0.25d0, i=1, 15)], shape(weights))) < 1d-5), &
      "bound weights moved against the gradient")
    call tutti_parameter_get(adam, matrix, copy)
    call check(all(copy == weights), "a copy is the bound array")
    call tutti_parameter_values(adam, vector, direct)
    call check(all(abs(direct - [(i + 0.25, i=1, 7)]) < 1e-5), "the other moved, too")
    call tutti_run_destroy(run)
    call tutti_optimizer_destroy(adam)
    call tutti_topology_destroy(topology)
  end subroutine

  subroutine one_rank_is_nonfinite()
    type(tutti_topology) :: topology
    type(tutti_optimizer) :: adam
    type(tutti_run) :: run
    type(tutti_outcome) :: outcome
    type(tutti_incident) :: incident
    integer(tutti_index) :: p, before, after, words(8)
    real(real64) :: gradient(10, 20)
    character(:), allocatable :: message, json
    type(computation), target :: again
    type(c_funptr) :: procedure
    integer :: ierr

    call tutti_topology_create(MPI_COMM_WORLD, 1, topology)
    call tutti_optimizer_create_adam(topology, "adam", adam)
    call tutti_parameter_add(adam, "p", TUTTI_BF16, [10, 20], TUTTI_REPLICATED, p)
    call tutti_run_create(topology, run)
    again = computation(adam, p)
    procedure = c_funloc(compute_again)
    call tutti_run_recompute(run, procedure, "Fortran", c_loc(again))
    call tutti_run_add_optimizer(run, adam)
    call tutti_run_start(run)
    gradient = 1
    if (world_rank == ranks - 1) gradient(4, 3) = ieee_value(0d0, ieee_quiet_nan)
    call tutti_run_digest(run, before)
    call tutti_gradient_set(adam, p, gradient)
    call tutti_window_add(run, 1d0, 1)
    call tutti_step(run, outcome)
    call check(outcome%verdict == TUTTI_SKIP .and. outcome%reason == TUTTI_REASON_GRADIENT, "skip")
    call tutti_step_incident(run, incident)
    call check(incident%rank == ranks - 1 .and. incident%element == 2 * 10 + 3, "offender")
    call check(ieee_is_nan(incident%value) .and. incident%optimizer == 0, "its value")
    call tutti_step_message(run, message)
    call check(index(message, "nan in adam/p element 23 of rank") > 0, "message: " // message)
    call tutti_step_incident_json(run, json)
    call check(index(json, '"cause": "transient"') > 0, "computed again: " // json)
    words = [int(outcome%verdict, int64), int(outcome%reason, int64), outcome%step, &
      outcome%attempt, outcome%samples, int(outcome%rank, int64), incident%element, incident%count]
    call same_on_all_ranks(words)
    call tutti_run_digest(run, after)
    call check(before == after, "a skip changes nothing")

    ! A failure on one rank; without ierr this would end the program.
    if (world_rank == ranks - 1) call tutti_window_fail(run, 5, "no convergence")
    call tutti_step(run, outcome, ierr)
    call check(ierr == TUTTI_HALT .and. outcome%verdict == TUTTI_HALTED, "halt")
    call check(outcome%failure_code == 5 .and. outcome%rank == ranks - 1, "code and rank")
    call check(index(tutti_last_error_message(), "no convergence") > 0, "text of the failing rank")
    call tutti_run_destroy(run)
    call tutti_optimizer_destroy(adam)
    call tutti_topology_destroy(topology)
  end subroutine

  subroutine same_on_all_ranks(words)
    integer(int64), intent(in) :: words(:)
    integer(int64) :: least(size(words)), most(size(words))
    call MPI_Allreduce(words, least, size(words), MPI_INTEGER8, MPI_MIN, MPI_COMM_WORLD)
    call MPI_Allreduce(words, most, size(words), MPI_INTEGER8, MPI_MAX, MPI_COMM_WORLD)
    call check(all(least == most), "the same on all ranks")
  end subroutine

  !> A field of the program's own, cut along its last dimension, as it does in memory.
  subroutine own_arrays_in_the_background(run)
    type(tutti_run), intent(in) :: run
    real(real64), allocatable, target, save :: field(:, :)  ! as long as the run has it
    integer(int32), target, save :: mask(0), times
    character(:), allocatable :: file, description, json
    logical :: watched
    integer :: first, last, i, j, ierr
    first = 9 * world_rank / ranks + 1
    last = 9 * (world_rank + 1) / ranks
    allocate (field(4, first:last))
    do j = first, last
      do i = 1, 4
        field(i, j) = 10 * j + i
      end do
    end do
    times = 7
    call tutti_array_bind(run, "field", [4, 9], [1, first], field)
    call tutti_scalar_bind(run, "times", times)
    call tutti_array_bind(run, "field", [4, 9], [1], field, ierr)
    call check(ierr == TUTTI_INVALID_ARGUMENT, "begins of another rank")
    call tutti_array_bind(run, "field", [4, 9], [1, first], field(1:3:2, :), ierr)
    call check(ierr == TUTTI_INVALID_ARGUMENT, "a section that is not contiguous")
    call tutti_array_bind(run, "mask", [5], [6], mask)  ! nobody holds it
    call tutti_checkpoint_start(run, directory // "/own", ierr)
    call check(ierr == TUTTI_CHECKPOINT_ERROR .or. ierr == TUTTI_INVALID_ARGUMENT, "a gap")
    call tutti_scalar_bind(run, "mask", times)  ! binding again replaces it

    call tutti_checkpoint_start(run, directory // "/own")
    field = 0
    times = 0
    call tutti_checkpoint_finish(run, file)
    call check(file == directory // "/own/step-000000000001.h5", "its file")
    call tutti_checkpoint_finish(run, description)
    call check(description == "", "no second one")
    call tutti_checkpoint_restore(run, file)
    call check(times == 7, "scalar")
    do j = first, last
      do i = 1, 4
        call check(field(i, j) == 10 * j + i, "field")
      end do
    end do
    call tutti_progress(run)
    call tutti_run_watched(run, watched, description)
    call check(.not. watched .and. description == "no watchdog (none was asked for)", "no watchdog")
    call tutti_step_incident_json(run, json)
    call check(json == "", "no incident")
  end subroutine

  subroutine sgd_and_checkpoints()
    type(tutti_topology) :: topology
    type(tutti_optimizer) :: optimizer
    type(tutti_run) :: run
    type(tutti_outcome) :: outcome
    type(tutti_callbacks) :: callbacks
    type(sgd), target :: s
    real(real32) :: kept(n)
    integer(tutti_index) :: p, digest, again, step, attempt, samples
    character(:), allocatable :: file, latest, configuration, again_file

    callbacks%context = c_loc(s)
    callbacks%inspect = c_funloc(inspect)
    callbacks%stage = c_funloc(stage)
    callbacks%publish = c_funloc(publish)
    callbacks%restored = c_funloc(restored)
    call tutti_topology_create(MPI_COMM_WORLD, 1, topology)
    call tutti_optimizer_create_callbacks(topology, "sgd", callbacks, optimizer)
    call tutti_parameter_add(optimizer, "w", TUTTI_FP32, [n], TUTTI_REPLICATED, p)
    call tutti_state_bind(optimizer, p, "w", s%w)
    call tutti_run_create(topology, run)
    call tutti_run_set_text(run, "configuration", '{"from":"Fortran"}')
    call tutti_run_add_optimizer(run, optimizer)
    call tutti_run_start(run)
    call tutti_checkpoint_latest(run, directory, latest)
    call check(latest == "", "no checkpoint yet")

    s%gradient = 1
    call tutti_window_add(run, 1d0, 1)
    call tutti_step(run, outcome)
    ! One sample a rank, of a window of one: the mean is a sum over 1 / ranks.
    call check(s%published == 1 .and. all(abs(s%w - (2 - 0.5 / ranks)) < 1e-6), "one update")
    call own_arrays_in_the_background(run)
    call tutti_checkpoint_save(run, directory, file)
    call check(file == directory // "/step-000000000001.h5", "name of the checkpoint")
    call tutti_run_digest(run, digest)
    kept = s%w
    call tutti_window_add(run, 1d0, 1)
    call tutti_step(run, outcome)
    call check(any(kept /= s%w), "another update")
    call tutti_checkpoint_latest(run, directory, latest)
    call check(latest == file, "latest")
    call tutti_checkpoint_configuration(run, latest, configuration)
    call check(configuration == '{"from":"Fortran"}', "configuration")
    call tutti_checkpoint_restore(run, latest)
    call tutti_checkpoint_restore_latest(run, directory, again_file)
    call check(again_file == file, "restored the latest")
    call tutti_run_digest(run, again)
    call tutti_run_position(run, step, attempt, samples)
    call check(s%restored == 3 .and. all(kept == s%w) .and. digest == again, "restored")
    call check(step == 1 .and. attempt == 1, "position")
    call tutti_run_destroy(run)
    call tutti_optimizer_destroy(optimizer)
    call tutti_topology_destroy(topology)
  end subroutine
end program fortran_interface
