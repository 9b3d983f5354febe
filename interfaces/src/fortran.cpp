// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The part of the Fortran module that is C: communicators, and what is known of an array only
// there. It needs no Fortran compiler, so it is always in the library.
#include "fortran.h"

#include <fmt/format.h>

#include <vector>

#include "handles.hpp"
#include "status.hpp"

using namespace tutti;
using namespace tutti::c;

tutti_status tutti_fortran_topology_create(MPI_Fint communicator, int model_parallel,
                                           tutti_topology* topology)
{
  int running = 0;
  if (MPI_Initialized(&running) != MPI_SUCCESS || running == 0)
    return tutti_topology_create(MPI_COMM_WORLD, model_parallel, topology);  // says what is missing
  return tutti_topology_create(MPI_Comm_f2c(communicator), model_parallel, topology);
}

tutti_status tutti_fortran_check(tutti_optimizer optimizer, int64_t parameter, int64_t size,
                                 int contiguous, int type, int in_window)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const auto check = [&] {
      const auto p = static_cast<std::size_t>(parameter);
      if (parameter < 0 || p >= o.parameters.size()) return;  // the call itself refuses it
      const std::string& name = o.parameters[p].name;
      const std::size_t elements = o.piece(p).elements;
      if (size >= 0 && static_cast<std::size_t>(size) != elements)
        throw InvalidArgument(fmt::format(
            "an array of {} elements is refused for parameter '{}' (this rank holds {}); give one "
            "of its size",
            size, name, elements));
      if (contiguous == 0)
        throw InvalidArgument(fmt::format(
            "the array for parameter '{}' is refused (it is not contiguous); give a whole array",
            name));
      if (type >= 0 && type_of(o.parameters[p].precision) != type)
        throw InvalidArgument(fmt::format(
            "a pointer of real32 to parameter '{}' is refused (it is {}); use tutti_parameter_get "
            "or tutti_gradient_set",
            name, name_of(o.parameters[p].precision)));
    };
    if (in_window != 0 && o.run != nullptr && o.run->state == tutti_run_s::State::started)
      o.run->in_window([&](Window&) { check(); });
    else
      check();
  });
}

tutti_status tutti_fortran_array_bind(tutti_run run, const char* name, int type, int axes,
                                      const int64_t* shape, int begins, const int64_t* begin,
                                      int ranks, const int64_t* extent, int contiguous,
                                      void* values)
{
  // Row-major order is Fortran's with its dimensions reversed.
  std::vector<int64_t> global, first, part;
  const tutti_status status = guarded([&] {
    if (axes != begins || axes != ranks)
      throw InvalidArgument(fmt::format(
          "array '{}' is refused (a shape of {} dimensions, {} begins, and an array of rank {}); "
          "give as many of each",
          text(name, "the array's name"), axes, begins, ranks));
    if (contiguous == 0)
      throw InvalidArgument(
          fmt::format("array '{}' is refused (it is not contiguous); give a whole array", name));
    for (int axis = axes; axis-- > 0;) {
      global.push_back(shape[axis]);
      first.push_back(begin[axis] - 1);
      part.push_back(extent[axis]);
    }
  });
  if (status != TUTTI_SUCCESS) return status;
  return tutti_array_bind(run, name, static_cast<tutti_type>(type), axes, global.data(),
                          first.data(), part.data(), values);
}

void tutti_fortran_sizes(int64_t sizes[5])
{
  sizes[0] = sizeof(tutti_outcome);
  sizes[1] = sizeof(tutti_incident);
  sizes[2] = sizeof(tutti_update);
  sizes[3] = sizeof(tutti_callbacks);
  sizes[4] = sizeof(tutti_loss);
}
