// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checkpoints, whole: saving, restoring and looking into.
#pragma once

#include "tutti/checkpoint_file.hpp"
#include "tutti/checkpoint_restore.hpp"
#include "tutti/checkpoint_save.hpp"
