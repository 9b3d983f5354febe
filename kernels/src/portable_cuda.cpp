// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The portable kernels on the CUDA device that Kokkos was initialized with; compiled only where
// Kokkos has CUDA. no_cuda.cpp takes its place elsewhere.
#include "portable_device.hpp"

#if !defined(KOKKOS_ENABLE_CUDA)
#error "this Kokkos has no CUDA; use a CUDA build of it or TUTTI_ENABLE_CUDA=OFF"
#endif

namespace tutti {
namespace {

void check(cudaError_t status, const char* call)
{
  if (status != cudaSuccess)
    throw DeviceError(std::string(call) + " failed (" + cudaGetErrorString(status) + ")");
}

std::string cuda_name(int ordinal)
{
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  return "cuda " + std::to_string(ordinal) + " (" + properties.name + ")";
}

class CudaDevice final : public detail::PortableDevice<Kokkos::Cuda> {
 public:
  explicit CudaDevice(int ordinal) : PortableDevice(cuda_name(ordinal)) {}

  DeviceKind kind() const override { return DeviceKind::cuda; }
  void copy(void* to, const void* from, std::size_t bytes) override
  {
    if (bytes == 0) return;
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
    check(cudaDeviceSynchronize(),
          "cudaDeviceSynchronize");  // device-to-device copies return early
  }
  void pin(void* memory, std::size_t bytes) override
  {
    if (bytes == 0) return;
    int ordinal = 0;
    int same_address = 0;
    check(cudaGetDevice(&ordinal), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                 ordinal),
          "cudaDeviceGetAttribute");
    if (same_address == 0)
      throw DeviceError(name() +
                        " cannot be used (it does not see pinned host memory at its host " +
                        "address); use device host on this node");
    check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
          "cudaHostRegister");
  }
  void unpin(void* memory) noexcept override { cudaHostUnregister(memory); }
};

}  // namespace

int cuda_device_count()
{
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Device> make_cuda_device(int ordinal)
{
  const int count = cuda_device_count();
  if (ordinal < 0 || ordinal >= count)
    throw DeviceError("CUDA device " + std::to_string(ordinal) + " is not there (" +
                      std::to_string(count) + " usable); use device host or another ordinal");
  const int used = Kokkos::Cuda().cuda_device();
  if (used != ordinal)
    throw DeviceError("CUDA device " + std::to_string(ordinal) + " cannot be used (Kokkos was " +
                      "initialized on device " + std::to_string(used) +
                      "); choose the device when Kokkos is initialized");
  return std::make_unique<CudaDevice>(ordinal);
}

}  // namespace tutti
