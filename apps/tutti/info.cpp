// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Versions and devices, gathered without starting anything.
#include "info.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>
#include <mpi.h>
#include <openblas_config.h>

#include "revision.hpp"  // written at build time
#include "tutti/device.hpp"
#include "tutti/kokkos_runtime.hpp"
#include "tutti/transports.hpp"
#include "version.hpp"  // written when CMake configures

extern "C" char* openblas_get_config(void);

namespace tutti::apps {

std::string version() { return tutti_version; }

std::string info()
{
  std::string text = fmt::format("tutti {} ({})\n", tutti_version, tutti_revision);
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<16}{}\n", name, value);
  };
  line("compiler", tutti_compilers);
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(mpi, &length) == MPI_SUCCESS) {  // allowed before MPI_Init
    std::string library(mpi);
    if (const auto end = library.find_first_of(",\n"); end != std::string::npos)
      library.resize(end);
    line("MPI", fmt::format("{} (standard {}.{})", library, MPI_VERSION, MPI_SUBVERSION));
  }
  line("Kokkos", kokkos_description());
  unsigned major = 0, minor = 0, release = 0;
  if (H5get_libversion(&major, &minor, &release) >= 0)
    line("HDF5", fmt::format("{}.{}.{} parallel", major, minor, release));
  line("BLAS", openblas_get_config());
#ifdef TUTTI_ENABLE_CUDA
  line("CUDA", fmt::format("built in, {} usable devices", cuda_device_count()));
#else
  line("CUDA", "not built in");
#endif
  const std::string nccl = nccl_version();
  line("NCCL", nccl.empty() ? "not built in" : nccl);
  line("GPU-aware MPI", gpu_aware_mpi() ? "yes" : "no");
  line("instructions", fmt::format("{} in use; this machine runs {}", make_host_device()->name(),
                                   fmt::join(host_instruction_sets(), ", ")));
  return text;
}

}  // namespace tutti::apps
