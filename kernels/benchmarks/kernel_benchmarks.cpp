// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Each kernel on each host device, in cache and from memory: million parameters a second, GB/s of
// what the kernel reads and writes, and the ratio to this run's memory bound (the best of memcpy,
// in-place multiply and non-temporal triad). Rates depend on the machine: compare ratios of one
// run.
#include <benchmark/benchmark.h>

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/half.hpp"
#include "tutti/memory_bound.hpp"

using namespace tutti;

namespace {

double memory_bound = 1;  ///< GB/s, measured at start

struct Place {
  const char* name;
  std::size_t blocks;
};
// 8 blocks of Adam state are about half a MiB; 8192 blocks are 33.5 million parameters.
constexpr Place places[] = {{"cache", 8}, {"memory", 8192}};

class Array {
 public:
  Array(Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~Array() { device_.deallocate(data_); }
  Array(const Array&) = delete;
  float* floats() { return static_cast<float*>(data_); }
  char* bytes() { return static_cast<char*>(data_); }

 private:
  Device& device_;
  void* data_;
};

void fill(Array& array, Precision precision, std::size_t count)
{
  for (std::size_t i = 0; i < count; ++i)
    store_element(array.bytes(), precision, i, static_cast<float>(i % 1000 + 1) * 0x1p-12f);
}

void report(benchmark::State& state, std::size_t parameters, double bytes_a_parameter)
{
  const double done = static_cast<double>(state.iterations()) * static_cast<double>(parameters);
  using benchmark::Counter;
  state.counters["Mparam/s"] = Counter(done * 1e-6, Counter::kIsRate);
  state.counters["GB/s"] = Counter(done * bytes_a_parameter * 1e-9, Counter::kIsRate);
  state.counters["of_bound"] =
      Counter(done * bytes_a_parameter * 1e-9 / memory_bound, Counter::kIsRate);
}

void sum(benchmark::State& state, Device& device, Precision precision, std::uint32_t sources,
         std::size_t blocks, bool stream)
{
  const std::size_t count = blocks * block_elements;
  std::vector<std::unique_ptr<Array>> arrays;
  for (std::uint32_t s = 0; s < sources; ++s) {
    arrays.push_back(std::make_unique<Array>(device, count * bytes_of(precision)));
    fill(*arrays.back(), precision, count);
  }
  Array total(device, count * sizeof(float));
  std::vector<SumBlock> table;
  std::vector<const void*> pointers;
  for (std::size_t b = 0; b < blocks; ++b) {
    table.push_back({static_cast<std::uint32_t>(pointers.size()), sources, precision});
    for (auto& array : arrays)
      pointers.push_back(array->bytes() + b * block_elements * bytes_of(precision));
  }
  std::vector<BlockScan> scan(blocks);
  const SumBlocks work{blocks, table.data(), pointers.data(), total.floats(), scan.data(), stream};
  for (auto _ : state) device.sum_blocks(work);
  report(state, count, static_cast<double>(sources * bytes_of(precision) + 4));
}

void adam(benchmark::State& state, Device& device, Precision precision, std::size_t blocks,
          bool in_place, bool stream, bool with_ema)
{
  const std::size_t count = blocks * block_elements, bytes = count * sizeof(float);
  Array gradient(device, bytes), master(device, bytes), exp_avg(device, bytes),
      exp_avg_sq(device, bytes), ema(device, with_ema ? bytes : 0);
  const std::size_t staged = in_place ? 0 : bytes;
  Array new_master(device, staged), new_exp_avg(device, staged), new_exp_avg_sq(device, staged),
      new_ema(device, with_ema ? staged : 0);
  Array weights(device, count * bytes_of(precision));
  for (Array* array : {&gradient, &master, &exp_avg, &exp_avg_sq})
    fill(*array, Precision::fp32, count);
  std::vector<AdamBlock> table;
  for (std::size_t b = 0; b < blocks; ++b)
    table.push_back({weights.bytes() + b * block_elements * bytes_of(precision), 0});
  AdamScalars scalars;
  scalars.step_size = 1e-6f;
  scalars.decay = 0.999999f;
  scalars.ema_decay = 0.999f;
  scalars.one_minus_ema_decay = 0.001f;
  scalars.weights = precision;
  std::vector<AdamScan> scan(blocks);
  AdamBlocks work;
  work.blocks = blocks;
  work.block = table.data();
  work.scalars = &scalars;
  work.gradient = gradient.floats();
  work.master = master.floats();
  work.exp_avg = exp_avg.floats();
  work.exp_avg_sq = exp_avg_sq.floats();
  work.ema = with_ema ? ema.floats() : nullptr;
  work.new_master = in_place ? master.floats() : new_master.floats();
  work.new_exp_avg = in_place ? exp_avg.floats() : new_exp_avg.floats();
  work.new_exp_avg_sq = in_place ? exp_avg_sq.floats() : new_exp_avg_sq.floats();
  work.new_ema = !with_ema ? nullptr : in_place ? ema.floats() : new_ema.floats();
  work.scan = scan.data();
  work.stream = stream;
  for (auto _ : state) device.adam_blocks(work);
  report(state, count, 28.0 + static_cast<double>(bytes_of(precision)) + (with_ema ? 8 : 0));
}

void accumulate(benchmark::State& state, Device& device, Precision precision, std::size_t blocks)
{
  const std::size_t count = blocks * block_elements;
  Array gradient(device, count * bytes_of(precision)), total(device, count * sizeof(float));
  fill(gradient, precision, count);
  for (auto _ : state)
    benchmark::DoNotOptimize(
        device.accumulate(total.floats(), gradient.bytes(), precision, count, false));
  report(state, count, static_cast<double>(bytes_of(precision)) + 8);
}

void scan(benchmark::State& state, Device& device, Precision precision, std::size_t blocks)
{
  const std::size_t count = blocks * block_elements;
  Array values(device, count * bytes_of(precision));
  fill(values, precision, count);
  for (auto _ : state) benchmark::DoNotOptimize(device.scan(values.bytes(), precision, count));
  report(state, count, static_cast<double>(bytes_of(precision)));
}

void convert(benchmark::State& state, Device& device, Precision precision, std::size_t blocks)
{
  const std::size_t count = blocks * block_elements;
  Array values(device, count * sizeof(float)), to(device, count * bytes_of(precision));
  fill(values, Precision::fp32, count);
  for (auto _ : state) device.convert(to.bytes(), precision, values.floats(), count);
  report(state, count, 4 + static_cast<double>(bytes_of(precision)));
}

void digest(benchmark::State& state, Device& device, Precision precision, std::size_t blocks)
{
  const std::size_t count = blocks * block_elements;
  Array values(device, count * bytes_of(precision));
  fill(values, precision, count);
  std::vector<std::uint64_t> digests(blocks);
  for (auto _ : state) device.digest_blocks(digests.data(), values.bytes(), precision, blocks);
  report(state, count, static_cast<double>(bytes_of(precision)));
}

void register_for(Device& device, const std::string& set)
{
  for (const Place& place : places) {
    const std::size_t blocks = place.blocks;
    const bool memory = blocks > 1000;
    const auto add = [&](const std::string& what, auto body) {
      benchmark::RegisterBenchmark((what + "/" + place.name + "/" + set).c_str(), body)
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    };
    for (Precision precision : {Precision::fp16, Precision::bf16, Precision::fp32}) {
      const std::string p(name_of(precision));
      for (std::uint32_t sources : {1u, 2u, 3u, 4u, 8u})
        for (bool stream : {false, true}) {
          if (stream && !memory) continue;
          add("sum_" + p + "_" + std::to_string(sources) + (stream ? "_streamed" : ""),
              [=, &device](benchmark::State& s) {
                sum(s, device, precision, sources, blocks, stream);
              });
        }
      for (bool ema : {false, true}) {
        const std::string name = "adam_" + p + (ema ? "_ema" : "");
        add(name + "_in_place", [=, &device](benchmark::State& s) {
          adam(s, device, precision, blocks, true, false, ema);
        });
        add(name + "_staged", [=, &device](benchmark::State& s) {
          adam(s, device, precision, blocks, false, false, ema);
        });
        add(name + "_streamed", [=, &device](benchmark::State& s) {
          adam(s, device, precision, blocks, false, true, ema);
        });
      }
      add("accumulate_" + p,
          [=, &device](benchmark::State& s) { accumulate(s, device, precision, blocks); });
      add("scan_" + p, [=, &device](benchmark::State& s) { scan(s, device, precision, blocks); });
      if (precision != Precision::fp32)
        add("convert_" + p,
            [=, &device](benchmark::State& s) { convert(s, device, precision, blocks); });
      add("digest_" + p,
          [=, &device](benchmark::State& s) { digest(s, device, precision, blocks); });
    }
  }
}

}  // namespace

int main(int argc, char** argv)
{
  Kokkos::initialize(argc, argv);
  int status = 0;
  {
    std::vector<std::unique_ptr<Device>> devices;
    for (const std::string& set : host_instruction_sets()) {
      devices.push_back(make_host_device(set));
      register_for(*devices.back(), set);
    }
    devices.push_back(make_portable_host_device());
    register_for(*devices.back(), "portable");
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
      status = 2;
    } else {
      const MemoryBound bound = measure_memory_bounds(std::size_t{128} << 20, 2);
      memory_bound = bound.best();
      std::fprintf(stderr, "memory bound: copy %.1f, in-place multiply %.1f, triad %.1f GB/s\n",
                   bound.copy, bound.multiply, bound.triad);
      benchmark::RunSpecifiedBenchmarks();
    }
    benchmark::Shutdown();
  }
  Kokkos::finalize();
  return status;
}
