// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains a small network on a part of the job's ranks, as a simulation would that keeps the others
// for itself: a communicator of the user's, numbered samples, clipping, a schedule, checkpoints.
// The network learns f(x, y) = sin(pi x) y on [-1, 1]^2 with one hidden layer of tanh; in the end
// its error is below 0.05.
// usage: regression [DIRECTORY]    continues from the newest checkpoint there, and saves the last
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <tutti/checkpoint.hpp>
#include <tutti/tutti.hpp>
#include <vector>

namespace {

constexpr int hidden = 24;
constexpr std::uint64_t window_samples = 256, steps = 1500;

double target(double x, double y) { return std::sin(std::numbers::pi * x) * y; }

/// Sample `position` of the run: the same numbers on whichever rank asks for it.
std::array<double, 2> sample(std::uint64_t position)
{
  const auto fraction = [](double value) { return value - std::floor(value); };
  const auto n = static_cast<double>(position + 1);  // a low-discrepancy sequence
  return {2 * fraction(n * 0.7548776662466927) - 1, 2 * fraction(n * 0.5698402909980532) - 1};
}

struct Network {
  const float *w1, *b1, *w2, *b2;  // [hidden x 2], [hidden], [hidden], [1]

  double value(double x, double y, std::array<double, hidden>& h) const
  {
    double out = b2[0];
    for (int i = 0; i < hidden; ++i) {
      h[i] = std::tanh(w1[2 * i] * x + w1[2 * i + 1] * y + b1[i]);
      out += w2[i] * h[i];
    }
    return out;
  }
};

Network published(const tutti::ShardedAdam& adam)
{
  const auto array = [&](std::size_t p) { return static_cast<const float*>(adam.weights(p)); };
  return {array(0), array(1), array(2), array(3)};
}

/// Adds the gradients of the sum over `part` of (f - target)^2 / 2, times `scale`, to `gradients`;
/// returns the unscaled sum.
double add_gradients(const Network& net, tutti::Interval part, double scale,
                     std::array<std::vector<double>, 4>& gradients)
{
  double loss = 0;
  std::array<double, hidden> h;
  for (std::uint64_t position = part.begin; position < part.end; ++position) {
    const auto [x, y] = sample(position);
    const double error = net.value(x, y, h) - target(x, y);
    loss += 0.5 * error * error;
    const double e = error * scale;
    gradients[3][0] += e;
    for (int i = 0; i < hidden; ++i) {
      gradients[2][i] += e * h[i];
      const double before_tanh = e * net.w2[i] * (1 - h[i] * h[i]);
      gradients[1][i] += before_tanh;
      gradients[0][2 * i] += before_tanh * x;
      gradients[0][2 * i + 1] += before_tanh * y;
    }
  }
  return loss;
}

/// Root of the mean square error on a grid that was not trained on.
double grid_error(const Network& net)
{
  double squares = 0;
  std::array<double, hidden> h;
  for (int i = 0; i < 50; ++i)
    for (int j = 0; j < 50; ++j) {
      const double x = (i + 0.5) / 25 - 1, y = (j + 0.5) / 25 - 1;
      squares += std::pow(net.value(x, y, h) - target(x, y), 2);
    }
  return std::sqrt(squares / 2500);
}

void train(MPI_Comm trainers, const char* directory)
{
  tutti::Topology topology(trainers);
  auto device = tutti::make_host_device();
  tutti::ParameterSet parameters;
  parameters.add({.name = "hidden.weight", .shape = {hidden, 2}});
  parameters.add({.name = "hidden.bias", .shape = {hidden}});
  parameters.add({.name = "out.weight", .shape = {hidden}});
  parameters.add({.name = "out.bias", .shape = {1}});
  const std::array<std::size_t, 4> sizes = {2 * hidden, hidden, hidden, 1};
  tutti::ShardedAdam adam(topology, *device, parameters, {.learning_rate = 0.02});
  adam.initialize([&](std::size_t p) {  // the same on all ranks
    std::vector<float> values(sizes[p]);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(2 * std::sin(12.9898 * static_cast<double>(i + 50 * p)));
    return values;
  });
  tutti::CoordinatorOptions options{.window_samples = window_samples};
  options.policy.max_norm = 1;
  options.policy.schedule = {.kind = tutti::ScheduleKind::cosine, .horizon = steps};
  tutti::Coordinator coordinator(topology, {&adam}, options);
  tutti::Participant* const participants[] = {&adam};
  if (directory != nullptr)
    if (const auto latest = tutti::latest_checkpoint(directory, topology))
      coordinator.resume(tutti::restore_checkpoint(*latest, topology, participants).control);

  while (coordinator.control().step < steps) {
    tutti::Window window = coordinator.open_window();
    std::array<std::vector<double>, 4> gradients;
    for (std::size_t p = 0; p < 4; ++p) gradients[p].resize(sizes[p]);
    const tutti::Interval part = window.positions(0);  // of this rank
    const double loss = add_gradients(published(adam), part, window.gradient_scale(), gradients);
    for (std::size_t p = 0; p < 4; ++p)
      std::copy(gradients[p].begin(), gradients[p].end(), static_cast<float*>(adam.gradient(p)));
    window.add_micro_batch(loss, part.size());
    const tutti::Outcome outcome = coordinator.step(window);
    if (topology.rank() == 0 && outcome.step % 500 == 0)
      std::printf("step %4llu: loss %.6f\n", static_cast<unsigned long long>(outcome.step),
                  outcome.loss);
  }
  if (topology.rank() == 0) std::printf("error on the grid: %.4f\n", grid_error(published(adam)));
  if (directory != nullptr) tutti::save_checkpoint(coordinator.boundary(), directory);
  coordinator.close();
  adam.close_buffers();
  topology.close();
}

}  // namespace

int main(int argc, char** argv)
{
  tutti::Environment environment(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // Every third rank would simulate; the others train.
  const bool trains = rank % 3 != 2;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, trains ? 1 : 0, rank, &part);
  if (trains) train(part, argc > 1 ? argv[1] : nullptr);
  MPI_Comm_free(&part);
  return 0;
}
