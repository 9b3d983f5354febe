// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The umbrella header of tutti.
#pragma once

#include "tutti/coordinator.hpp"
#include "tutti/device.hpp"
#include "tutti/environment.hpp"
#include "tutti/sharded_adam.hpp"
#include "tutti/topology.hpp"
