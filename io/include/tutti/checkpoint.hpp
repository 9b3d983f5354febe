// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checkpoints, whole: saving and restoring.
#pragma once

#include "tutti/checkpoint_restore.hpp"
#include "tutti/checkpoint_save.hpp"
