// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Choice and measurement of devices.
#include "devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "agreement.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {
namespace {

constexpr std::size_t trial_blocks = 128;
constexpr int trials = 5;

/// Memory of a device for the length of the trial.
class Scratch {
 public:
  Scratch(Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { device_.deallocate(data_); }
  template <class T>
  T* as() const
  {
    return static_cast<T*>(data_);
  }

 private:
  Device& device_;
  void* data_;
};

}  // namespace

std::unique_ptr<Device> make_device(const std::string& name, int local_rank)
{
  const int cuda = name == "host" ? 0 : cuda_device_count();
  if (cuda > 0) return make_cuda_device(local_rank % cuda);
  if (name == "cuda")
    throw ConfigError(
        "device = 'cuda' cannot be had (no usable CUDA device, or built without "
        "TUTTI_ENABLE_CUDA); use "
        "--device host or auto");
  return make_host_device();
}

std::vector<double> measure_rank_weights(Device& device, MPI_Comm world)
{
  double speed = 0;  // blocks a second
  std::unique_ptr<Scratch> arrays, weights, table, scalars, scans;
  collectively(world, [&] {
    const std::size_t bytes = trial_blocks * block_elements * sizeof(float);
    arrays = std::make_unique<Scratch>(device, 7 * bytes);
    weights = std::make_unique<Scratch>(device, bytes);
    table = std::make_unique<Scratch>(device, trial_blocks * sizeof(AdamBlock));
    scalars = std::make_unique<Scratch>(device, sizeof(AdamScalars));
    scans = std::make_unique<Scratch>(device, trial_blocks * sizeof(AdamScan));
    std::vector<AdamBlock> blocks(trial_blocks);
    for (std::size_t b = 0; b < trial_blocks; ++b)
      blocks[b].weights = weights->as<float>() + b * block_elements;
    const AdamScalars values;
    device.copy(table->as<void>(), blocks.data(), blocks.size() * sizeof(AdamBlock));
    device.copy(scalars->as<void>(), &values, sizeof values);
  });
  const auto array = [&](std::size_t k) {
    return arrays->as<float>() + k * trial_blocks * block_elements;
  };
  AdamBlocks work;
  work.blocks = trial_blocks;
  work.block = table->as<AdamBlock>();
  work.scalars = scalars->as<AdamScalars>();
  work.gradient = array(0);
  work.master = array(1), work.exp_avg = array(2), work.exp_avg_sq = array(3);
  work.new_master = array(4), work.new_exp_avg = array(5), work.new_exp_avg_sq = array(6);
  work.scan = scans->as<AdamScan>();
  work.stream = true;
  collectively(world, [&] { device.adam_blocks(work); });
  check_mpi(MPI_Barrier(world),
            "MPI_Barrier");  // all measure at once: ranks share cores and memory in the run too
  collectively(world, [&] {
    const double start = MPI_Wtime();
    for (int i = 0; i < trials; ++i) device.adam_blocks(work);
    speed = trials * static_cast<double>(trial_blocks) / std::max(1e-9, MPI_Wtime() - start);
  });

  int size = 1;
  check_mpi(MPI_Comm_size(world, &size), "MPI_Comm_size");
  std::vector<double> speeds(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&speed, 1, MPI_DOUBLE, speeds.data(), 1, MPI_DOUBLE, world),
            "MPI_Allgather");
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (double& value : speeds) value = std::max(1.0, std::round(8 * value / fastest)) / 8;
  return speeds;
}

}  // namespace tutti::apps
