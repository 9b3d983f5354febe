// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which device a rank works on, and how fast it is: rank weights measured at start by a short Adam
// run on every rank's own device, all at once.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/device.hpp"

namespace tutti::apps {

/// Collective over `world`: one weight a rank, equal on all ranks; 1 is the fastest, in steps of
/// 1/8, so that noise between equal ranks does not make a plan of its own.
std::vector<double> measure_rank_weights(Device& device, MPI_Comm world);

/// The device that `name` (auto, host, cuda) stands for on this rank; `local_rank` counts within
/// its node. Throws ConfigError when it cannot be had.
std::unique_ptr<Device> make_device(const std::string& name, int local_rank);

}  // namespace tutti::apps
