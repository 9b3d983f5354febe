// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/kokkos_runtime.hpp"

#include <Kokkos_Core.hpp>

#include "tutti/device.hpp"

namespace tutti {

bool kokkos_is_running() { return Kokkos::is_initialized(); }

bool start_kokkos(int& argc, char** argv)
{
#ifdef KOKKOS_ENABLE_CUDA
  if (cuda_device_count() == 0) return false;
#endif
  Kokkos::initialize(argc, argv);
  return true;
}

void end_kokkos() { Kokkos::finalize(); }

std::string kokkos_description()
{
  std::string text = std::to_string(KOKKOS_VERSION / 10000) + "." +
                     std::to_string(KOKKOS_VERSION / 100 % 100) + "." +
                     std::to_string(KOKKOS_VERSION % 100) +
                     ", devices: " + Kokkos::DefaultHostExecutionSpace::name();
#ifdef KOKKOS_ENABLE_CUDA
  text += ", Cuda";
#endif
  return text;
}

}  // namespace tutti
