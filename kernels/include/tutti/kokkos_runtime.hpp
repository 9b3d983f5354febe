// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Starting and ending Kokkos for code that does not include it: in a CUDA build every file that
// does is device code and compiled by nvcc.
#pragma once

#include <string>

namespace tutti {

bool kokkos_is_running();
/// Starts Kokkos; it takes its own flags out of the arguments. A CUDA build of Kokkos does not
/// start where there is no usable CUDA device: nothing is started then, and host devices run on
/// one thread. Returns whether Kokkos runs.
bool start_kokkos(int& argc, char** argv);
void end_kokkos();
/// "3.4.1, devices: Serial".
std::string kokkos_description();

}  // namespace tutti
