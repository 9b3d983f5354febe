// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cstdio>
#include <tutti/tutti.hpp>

int main(int argc, char** argv)
{
  tutti::Environment environment(argc, argv);  // starts MPI and Kokkos if nobody has
  tutti::Topology topology(MPI_COMM_WORLD);    // all ranks data-parallel
  auto device = tutti::make_host_device();
  tutti::ParameterSet parameters;
  parameters.add({.name = "w", .shape = {1000}});  // fp32, replicated
  tutti::ShardedAdam adam(topology, *device, parameters, {.learning_rate = 0.05});
  adam.initialize([](std::size_t) { return std::vector<float>(1000, 1.0f); });
  tutti::Coordinator coordinator(topology, {&adam}, {.window_samples = 8});

  while (coordinator.control().step < 100) {  // minimize w^2 / 2 a sample: its gradient is w
    tutti::Window window = coordinator.open_window();
    const auto samples = window.positions(0).size();  // of this rank
    const auto* w = static_cast<const float*>(adam.weights(0));
    auto* gradient = static_cast<float*>(adam.gradient(0));
    for (int i = 0; i < 1000; ++i)
      gradient[i] = w[i] * static_cast<float>(samples * window.gradient_scale());
    window.add_micro_batch(0.5 * w[0] * w[0] * samples, samples);
    const tutti::Outcome outcome = coordinator.step(window);  // the same on all ranks; throws Halt
    if (topology.rank() == 0 && outcome.step % 25 == 0)
      std::printf("step %3lu: loss %.6f\n", static_cast<unsigned long>(outcome.step), outcome.loss);
  }
  coordinator.close();
  adam.close_buffers();
  topology.close();
}
