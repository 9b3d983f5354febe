! SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
!> A small network that learns what one cell does in a time step from its 8 neighbours: differences
!> to the cell in, increment of the cell out, one hidden layer of tanh. It knows nothing of MPI.
module surrogate
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  integer, parameter :: inputs = 8, hidden = 12

  type :: network
    real(real64) :: w1(inputs, hidden) = 0, b1(hidden) = 0, w2(hidden) = 0, b2(1) = 0
  end type

contains

  !> Deterministic small values, the same on all ranks.
  subroutine initialize(net)
    type(network), intent(out) :: net
    integer :: i, j
    do j = 1, hidden
      do i = 1, inputs
        net%w1(i, j) = 0.3d0 * sin(12.9898d0 * i + 78.233d0 * j)
      end do
      net%w2(j) = 0.3d0 * sin(39.425d0 * j)
    end do
  end subroutine

  !> The differences of the neighbours of cell (i, j) to it.
  pure function neighbours(u, i, j) result(x)
    real(real64), intent(in) :: u(0:, 0:)
    integer, intent(in) :: i, j
    real(real64) :: x(inputs)
    x = [u(i-1, j-1), u(i, j-1), u(i+1, j-1), u(i-1, j), u(i+1, j), u(i-1, j+1), u(i, j+1), &
      u(i+1, j+1)] - u(i, j)
  end function

  pure function predict(net, x) result(y)
    type(network), intent(in) :: net
    real(real64), intent(in) :: x(inputs)
    real(real64) :: y
    y = dot_product(net%w2, tanh(matmul(x, net%w1) + net%b1)) + net%b2(1)
  end function

  !> Adds the gradient of `scale` x (prediction - increment)^2 / 2 to `gradient`; `loss` gets the
  !> unscaled value.
  pure subroutine learn(net, x, increment, scale, gradient, loss)
    type(network), intent(in) :: net
    real(real64), intent(in) :: x(inputs), increment, scale
    type(network), intent(inout) :: gradient
    real(real64), intent(inout) :: loss
    real(real64) :: h(hidden), error, e, before_tanh(hidden)
    integer :: j
    h = tanh(matmul(x, net%w1) + net%b1)
    error = dot_product(net%w2, h) + net%b2(1) - increment
    loss = loss + 0.5d0 * error**2
    e = scale * error
    before_tanh = e * net%w2 * (1 - h**2)
    gradient%b2 = gradient%b2 + e
    gradient%w2 = gradient%w2 + e * h
    gradient%b1 = gradient%b1 + before_tanh
    do j = 1, hidden
      gradient%w1(:, j) = gradient%w1(:, j) + before_tanh(j) * x
    end do
  end subroutine
end module surrogate
