// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a build without CUDA answers.
#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace tutti {

int cuda_device_count() { return 0; }

std::unique_ptr<Device> make_cuda_device(int ordinal)
{
  throw DeviceError("CUDA device " + std::to_string(ordinal) +
                    " cannot be used (built without CUDA); use device host, or configure with "
                    "TUTTI_ENABLE_CUDA and a Kokkos that has CUDA");
}

}  // namespace tutti
