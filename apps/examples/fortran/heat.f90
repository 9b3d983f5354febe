! SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
!> The heat equation on a square with moving heat sources, explicit in time, cut over the ranks in
!> two dimensions; and while it runs, a network learns its time step (surrogate.f90). What the
!> solver had before is here as it was: grid, halo exchange, time step, its own restart file. What
!> tutti adds is `start_training`, `train` with one tutti_step, and the checkpoint beside the
!> solver's own. After 1000 steps the network does the next one with an error below 5 %.
!> usage: heat STEPS [DIRECTORY]    with a directory: restarts from the newest checkpoint there,
!> and saves every 200 steps and at the end
program heat
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use mpi_f08
  use surrogate
  use tutti
  implicit none

  integer, parameter :: cells = 64            ! along each side of the whole square
  real(real64), parameter :: diffusion = 0.2  ! dt x conductivity / h^2; below 1/4 it is stable
  integer, parameter :: save_every = 200

  ! The solver's.
  type(MPI_Comm) :: grid
  integer :: rank, ranks, dims(2) = 0, place(2), low(2), high(2), nx, ny
  integer :: west, east, south, north
  real(real64), allocatable :: u(:, :), increment(:, :)
  ! The surrogate's.
  type(tutti_topology) :: topology
  type(tutti_optimizer) :: adam
  type(tutti_run) :: run
  type(tutti_outcome) :: outcome
  type(network), target :: net
  integer(tutti_index) :: w1, b1, w2, b2, digest

  integer(tutti_index) :: step = 0, committed, samples
  integer :: steps
  character(:), allocatable :: directory, file
  character(512) :: argument

  call tutti_init()  ! MPI_Init would do as well; this one starts Kokkos, too
  call get_command_argument(1, argument)
  read (argument, *) steps
  call get_command_argument(2, argument)
  directory = trim(argument)

  call cut_the_square()
  call heat_up()
  call start_training()
  if (directory /= "") then
    call tutti_checkpoint_restore_latest(run, directory, file)
    if (file /= "") then  ! the weights in `net` are those of the checkpoint
      call tutti_run_position(run, committed, step, samples)
      call field_file(step, writes=.false.)
      if (rank == 0) print "(a,i0)", "restarted at step ", step
    end if
  end if

  do while (step < steps)
    call add_sources(step)
    call exchange_halos()
    call time_step()
    call train()
    step = step + 1
    if (rank == 0 .and. mod(step, int(save_every, int64)) == 0) &
      print "(a,i5,a,es10.3,2a)", "step ", step, ": loss ", outcome%loss, ", ", &
      tutti_verdict_name(outcome%verdict)
    if (directory /= "" .and. (mod(step, int(save_every, int64)) == 0 .or. step == steps)) then
      call field_file(step, writes=.true.)
      call tutti_checkpoint_save(run, directory, file)
    end if
    if (outcome%stop_requested /= 0) exit
  end do

  call report()
  call tutti_run_destroy(run)
  call tutti_optimizer_destroy(adam)
  call tutti_topology_destroy(topology)
  call MPI_Comm_free(grid)
  call tutti_finalize()

contains

  ! --- training beside the solver ----------------------------------------------------------------

  subroutine start_training()
    call initialize(net)
    call tutti_topology_create(grid, 1, topology)
    call tutti_optimizer_create_adam(topology, "surrogate", adam)
    call tutti_optimizer_set_number(adam, "learning_rate", 0.03d0)
    ! The weights stay ours: each committed step writes the new ones into `net`.
    call tutti_parameter_add(adam, "w1", TUTTI_FP32, shape(net%w1), TUTTI_REPLICATED, w1)
    call tutti_parameter_add(adam, "b1", TUTTI_FP32, shape(net%b1), TUTTI_REPLICATED, b1)
    call tutti_parameter_add(adam, "w2", TUTTI_FP32, shape(net%w2), TUTTI_REPLICATED, w2)
    call tutti_parameter_add(adam, "b2", TUTTI_FP32, shape(net%b2), TUTTI_REPLICATED, b2)
    call tutti_parameter_bind(adam, w1, net%w1)
    call tutti_parameter_bind(adam, b1, net%b1)
    call tutti_parameter_bind(adam, w2, net%w2)
    call tutti_parameter_bind(adam, b2, net%b2)
    call tutti_run_create(topology, run)
    call tutti_run_set_number(run, "window_samples", cells * cells)
    call tutti_run_set_text(run, "samples", "drop")  ! a time step does not come again
    call tutti_run_set_number(run, "max_norm", 1d0)
    call tutti_run_set_text(run, "schedule", "cosine")
    call tutti_run_set_number(run, "schedule_steps", 1000)
    call tutti_run_set_number(run, "final_factor", 0.01d0)
    call tutti_run_add_optimizer(run, adam)
    call tutti_run_start(run)
  end subroutine

  !> One update from all cells of all ranks; a sample is a cell.
  subroutine train()
    type(network) :: gradient
    real(real64) :: loss, loss_scale, gradient_scale, size_of_step
    integer :: i, j
    size_of_step = root_mean_square(increment)  ! the equation is linear: learn it at size 1
    call tutti_window_scale(run, loss_scale, gradient_scale)
    loss = 0
    do j = 1, ny
      do i = 1, nx
        call learn(net, neighbours(u, i, j) / (8 * size_of_step), &
          increment(i, j) / size_of_step, gradient_scale, gradient, loss)
      end do
    end do
    call tutti_gradient_set(adam, w1, gradient%w1)
    call tutti_gradient_set(adam, b1, gradient%b1)
    call tutti_gradient_set(adam, w2, gradient%w2)
    call tutti_gradient_set(adam, b2, gradient%b2)
    call tutti_window_add(run, loss, nx * ny)
    call tutti_step(run, outcome)  ! on all ranks or on none
    u(1:nx, 1:ny) = u(1:nx, 1:ny) + increment
  end subroutine

  !> How well the network does the next time step, over the whole square.
  subroutine report()
    real(real64) :: size_of_step, errors(2)
    integer :: i, j
    call add_sources(step)
    call exchange_halos()
    call time_step()
    size_of_step = root_mean_square(increment)
    errors = 0
    do j = 1, ny
      do i = 1, nx
        errors(1) = errors(1) + (increment(i, j) - &
          size_of_step * predict(net, neighbours(u, i, j) / (8 * size_of_step)))**2
        errors(2) = errors(2) + increment(i, j)**2
      end do
    end do
    call MPI_Allreduce(MPI_IN_PLACE, errors, 2, MPI_DOUBLE_PRECISION, MPI_SUM, grid)
    call tutti_run_digest(run, digest)
    if (rank == 0) print "(a,f8.5,a,z16.16)", "relative error of the surrogate: ", &
      sqrt(errors(1) / errors(2)), ", state ", digest
  end subroutine

  real(real64) function root_mean_square(array)
    real(real64), intent(in) :: array(:, :)
    real(real64) :: squares
    squares = sum(array**2)
    call MPI_Allreduce(MPI_IN_PLACE, squares, 1, MPI_DOUBLE_PRECISION, MPI_SUM, grid)
    root_mean_square = sqrt(squares / cells**2)
  end function

  ! --- the solver --------------------------------------------------------------------------------

  !> This rank has the cells low to high of the square, and a halo of one around them.
  subroutine cut_the_square()
    integer :: d
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    call MPI_Dims_create(ranks, 2, dims)
    call MPI_Cart_create(MPI_COMM_WORLD, 2, dims, [.true., .true.], .false., grid)
    call MPI_Comm_rank(grid, rank)
    call MPI_Cart_coords(grid, rank, 2, place)
    call MPI_Cart_shift(grid, 0, 1, west, east)
    call MPI_Cart_shift(grid, 1, 1, south, north)
    do d = 1, 2
      low(d) = cells * place(d) / dims(d) + 1
      high(d) = cells * (place(d) + 1) / dims(d)
    end do
    nx = high(1) - low(1) + 1
    ny = high(2) - low(2) + 1
    allocate (u(0:nx+1, 0:ny+1), increment(nx, ny))
  end subroutine

  !> A rough start, the same for any number of ranks.
  subroutine heat_up()
    integer :: i, j
    do j = 1, ny
      do i = 1, nx
        u(i, j) = sin(12.9898d0 * (low(1) + i) + 78.233d0 * (low(2) + j)) * &
          cos(3.7d0 * (low(1) + i) - 5.1d0 * (low(2) + j))
      end do
    end do
  end subroutine

  !> Hot and cold spots, others in each step, wherever they fall.
  subroutine add_sources(at)
    integer(tutti_index), intent(in) :: at
    integer :: k, x, y
    do k = 1, 64
      x = 1 + int(mod(at * 37 + k * 23 + at * at * 5, int(cells, int64))) - low(1) + 1
      y = 1 + int(mod(at * 11 + k * 41 + at * at * 3, int(cells, int64))) - low(2) + 1
      if (x >= 1 .and. x <= nx .and. y >= 1 .and. y <= ny) u(x, y) = u(x, y) + (-1)**k
    end do
  end subroutine

  subroutine exchange_halos()
    call swap_columns(1, west, nx + 1, east)
    call swap_columns(nx, east, 0, west)
    call swap_rows(1, south, ny + 1, north)  ! with the corners that the columns brought
    call swap_rows(ny, north, 0, south)
  end subroutine

  !> Sends column `mine` to rank `to`, and receives from rank `from` into column `halo`.
  subroutine swap_columns(mine, to, halo, from)
    integer, intent(in) :: mine, to, halo, from
    real(real64) :: out(ny), in(ny)
    out = u(mine, 1:ny)
    call MPI_Sendrecv(out, ny, MPI_DOUBLE_PRECISION, to, 0, in, ny, MPI_DOUBLE_PRECISION, from, &
      0, grid, MPI_STATUS_IGNORE)
    u(halo, 1:ny) = in
  end subroutine

  subroutine swap_rows(mine, to, halo, from)
    integer, intent(in) :: mine, to, halo, from
    real(real64) :: out(0:nx+1), in(0:nx+1)
    out = u(:, mine)
    call MPI_Sendrecv(out, nx + 2, MPI_DOUBLE_PRECISION, to, 1, in, nx + 2, &
      MPI_DOUBLE_PRECISION, from, 1, grid, MPI_STATUS_IGNORE)
    u(:, halo) = in
  end subroutine

  subroutine time_step()
    increment = diffusion * (u(0:nx-1, 1:ny) + u(2:nx+1, 1:ny) + u(1:nx, 0:ny-1) + &
      u(1:nx, 2:ny+1) - 4 * u(1:nx, 1:ny))
  end subroutine

  !> The solver's own restart file of a step: the square, row by row, whatever the number of ranks.
  subroutine field_file(at, writes)
    integer(tutti_index), intent(in) :: at
    logical, intent(in) :: writes
    type(MPI_File) :: handle
    type(MPI_Datatype) :: part
    character(32) :: name
    real(real64) :: inner(nx, ny)
    integer :: ierr
    write (name, "(a,i0.12,a)") "/field-", at, ".bin"
    if (writes .and. rank == 0) call execute_command_line("mkdir -p '" // directory // "'")
    call MPI_Barrier(grid)
    call MPI_File_open(grid, directory // trim(name), &
      merge(MPI_MODE_CREATE + MPI_MODE_WRONLY, MPI_MODE_RDONLY, writes), MPI_INFO_NULL, handle, &
      ierr)
    if (ierr /= MPI_SUCCESS) error stop "the field's restart file cannot be opened"
    call MPI_Type_create_subarray(2, [cells, cells], [nx, ny], low - 1, MPI_ORDER_FORTRAN, &
      MPI_DOUBLE_PRECISION, part)
    call MPI_Type_commit(part)
    call MPI_File_set_view(handle, 0_MPI_OFFSET_KIND, MPI_DOUBLE_PRECISION, part, "native", &
      MPI_INFO_NULL)
    if (writes) then
      inner = u(1:nx, 1:ny)
      call MPI_File_write_all(handle, inner, nx * ny, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE)
    else
      call MPI_File_read_all(handle, inner, nx * ny, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE)
      u(1:nx, 1:ny) = inner
    end if
    call MPI_Type_free(part)
    call MPI_File_close(handle)
  end subroutine
end program heat
