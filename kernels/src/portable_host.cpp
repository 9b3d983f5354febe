// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The portable kernels on the host: the bit oracle of all others.
#include <cstring>

#include "portable_device.hpp"
#include "tutti/error.hpp"
#include "tutti/kokkos_runtime.hpp"

namespace tutti {
namespace {

using HostSpace = Kokkos::DefaultHostExecutionSpace;

class PortableHostDevice final : public detail::PortableDevice<HostSpace> {
 public:
  PortableHostDevice() : PortableDevice(std::string("host (Kokkos ") + HostSpace::name() + ")") {}

  DeviceKind kind() const override { return DeviceKind::host; }
  void copy(void* to, const void* from, std::size_t bytes) override
  {
    if (bytes != 0) std::memmove(to, from, bytes);
  }
};

}  // namespace

std::unique_ptr<Device> make_portable_host_device()
{
  if (!kokkos_is_running())
    throw DeviceError(
        "the portable kernels cannot be had (Kokkos is not running, as in a CUDA build without a "
        "GPU); use make_host_device()");
  return std::make_unique<PortableHostDevice>();
}

}  // namespace tutti
