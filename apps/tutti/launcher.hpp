// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What started this process, as its environment says before MPI starts.
#pragma once

#include <optional>

namespace tutti::apps {

/// This process's rank; nothing outside a launcher.
std::optional<int> launched_rank();
/// The launcher's process on this node, or 0 outside a launcher.
long launcher_process();

}  // namespace tutti::apps
