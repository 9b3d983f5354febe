// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// `tutti info`: what this program is made of and runs on. Works without mpirun and starts no MPI.
#pragma once

#include <string>

namespace tutti::apps {

std::string version();
std::string info();

}  // namespace tutti::apps
