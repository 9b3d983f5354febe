// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every kernel of every host device against scalar oracles written here from the formulas of
// block.hpp: same bits, NaNs by class. The portable kernels, each instruction set of this machine,
// each precision.
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "far_device.hpp"
#include "staged_device.hpp"
#include "tutti/device.hpp"
#include "tutti/digest.hpp"
#include "tutti/digest_elements.hpp"
#include "tutti/error.hpp"
#include "tutti/half.hpp"
#include "tutti/kokkos_runtime.hpp"
#include "tutti/memory_bound.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace tutti;

namespace {

constexpr Precision precisions[] = {Precision::fp16, Precision::bf16, Precision::fp32};

/// Every host device, and one far from the host's memory; with TUTTI_TEST_DEVICE=cuda a GPU alone.
std::vector<std::unique_ptr<Device>> tested_devices()
{
  std::vector<std::unique_ptr<Device>> devices;
  if (test::on_cuda()) {
    devices.push_back(std::make_unique<StagedDevice>(make_cuda_device(0)));
    return devices;
  }
  if (kokkos_is_running()) devices.push_back(make_portable_host_device());
  for (const std::string& name : host_instruction_sets()) devices.push_back(make_host_device(name));
  devices.push_back(std::make_unique<StagedDevice>(std::make_unique<FarDevice>()));
  return devices;
}

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

/// Index of the first difference, -1 if there is none.
std::ptrdiff_t difference(const float* a, const float* b, std::size_t count)
{
  for (std::size_t i = 0; i < count; ++i)
    if (!same(a[i], b[i])) return static_cast<std::ptrdiff_t>(i);
  return -1;
}

std::ptrdiff_t difference(const void* a, const void* b, Precision precision, std::size_t count)
{
  for (std::size_t i = 0; i < count; ++i)
    if (!same(load_element(a, precision, i), load_element(b, precision, i)))
      return static_cast<std::ptrdiff_t>(i);
  return -1;
}

void check_scan(const BlockScan& seen, const BlockScan& expected)
{
  CHECK(std::bit_cast<std::uint64_t>(seen.sum_of_squares) ==
        std::bit_cast<std::uint64_t>(expected.sum_of_squares));
  CHECK(seen.largest_finite == expected.largest_finite);
  CHECK(seen.nonfinite == expected.nonfinite);
  CHECK(seen.first_nonfinite == expected.first_nonfinite);
}

/// Scan of `count` values; squares only on demand, in the documented lanes and tree.
BlockScan scan_oracle(const std::vector<float>& values, bool squares)
{
  BlockScan scan;
  double lane[32] = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float x = values[i];
    if (std::isfinite(x)) {
      scan.largest_finite = std::max(scan.largest_finite, bits_of(std::fabs(x)));
    } else {
      if (scan.nonfinite++ == 0) scan.first_nonfinite = static_cast<std::uint32_t>(i);
    }
    lane[i % 32] += static_cast<double>(x) * static_cast<double>(x);
  }
  for (int half : {16, 8, 4, 2, 1})
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  if (squares && scan.nonfinite == 0) scan.sum_of_squares = lane[0];
  return scan;
}

/// Values of all magnitudes that the precision has, subnormals and zeros of both signs among them.
class Values {
 public:
  explicit Values(std::uint64_t seed) : random_(seed) {}

  float any_finite(Precision precision)
  {
    for (;;) {
      const auto bits = static_cast<std::uint32_t>(random_());
      float x = float_from_bits(bits);
      if (precision == Precision::fp16) x = float_from_half(Half{static_cast<std::uint16_t>(bits)});
      if (precision == Precision::bf16)
        x = float_from_bfloat16(BFloat16{static_cast<std::uint16_t>(bits)});
      if (std::isfinite(x)) return x;
    }
  }
  float normal() { return gauss_(random_); }
  float nonfinite()
  {
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const float choice[] = {inf, -inf, nan, -nan};
    return choice[random_() % 4];
  }
  std::size_t below(std::size_t count) { return random_() % count; }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<float> gauss_;
};

/// An array of values in a precision, at any offset in elements from 64-byte alignment.
class Stored {
 public:
  Stored(Precision precision, std::size_t count, std::size_t offset = 0)
      : precision_(precision),
        offset_(offset),
        lines_((count + offset) * bytes_of(precision) / 64 + 1)
  {
  }
  void* data()
  {
    return reinterpret_cast<unsigned char*>(lines_.data()) + offset_ * bytes_of(precision_);
  }
  void set(std::size_t i, float value) { store_element(data(), precision_, i, value); }
  float get(std::size_t i) { return load_element(data(), precision_, i); }

 private:
  struct alignas(64) Line {
    unsigned char byte[64] = {};
  };
  Precision precision_;
  std::size_t offset_;
  std::vector<Line> lines_;
};

/// 64-byte aligned fp32 array.
class Floats {
 public:
  explicit Floats(std::size_t count, float fill = 0)
      : memory_(Precision::fp32, count), count_(count)
  {
    for (std::size_t i = 0; i < count; ++i) data()[i] = fill;
  }
  float* data() { return static_cast<float*>(memory_.data()); }
  float& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return count_; }

 private:
  Stored memory_;
  std::size_t count_;
};

}  // namespace

TEST_CASE("sums over any number of unaligned sources have the documented bits", "[kernels]")
{
  const auto devices = tested_devices();
  // Two blocks of finite values of all magnitudes, and one with nonfinite values, of which some lie
  // in the first, the last and any source.
  constexpr std::size_t blocks = 3;
  for (Precision precision : precisions)
    for (std::uint32_t sources = 0; sources <= 9; ++sources) {
      Values values(100 + sources);
      std::vector<Stored> data;
      for (std::size_t k = 0; k < blocks * sources; ++k) {
        data.emplace_back(precision, block_elements, k % 33);
        const bool wide = k / std::max(sources, 1u) != 1;
        for (std::size_t i = 0; i < block_elements; ++i)
          data.back().set(i, wide && precision != Precision::fp32 ? values.any_finite(precision)
                             : wide ? values.any_finite(precision) * 0x1p-4f
                                    : values.normal());
      }
      if (sources > 0)
        for (std::size_t where : {std::size_t{4095}, values.below(4096), values.below(4096)})
          data[2 * sources + values.below(sources)].set(where, values.nonfinite());

      std::vector<SumBlock> table;
      std::vector<const void*> pointers;
      for (std::size_t b = 0; b < blocks; ++b)
        table.push_back({static_cast<std::uint32_t>(b * sources), sources, precision});
      for (Stored& one : data) pointers.push_back(one.data());

      std::vector<std::vector<float>> expected(blocks, std::vector<float>(block_elements));
      for (std::size_t b = 0; b < blocks; ++b)
        for (std::size_t i = 0; i < block_elements; ++i)
          for (std::uint32_t s = 0; s < sources; ++s) {
            const float x = data[b * sources + s].get(i);
            expected[b][i] = s == 0 ? x : expected[b][i] + x;
          }
      for (const auto& device : devices)
        for (bool stream : {false, true}) {
          CAPTURE(device->name(), name_of(precision), sources, stream);
          Floats sum(blocks * block_elements, -77);
          std::vector<BlockScan> scan(blocks);
          device->sum_blocks(
              {blocks, table.data(), pointers.data(), sum.data(), scan.data(), stream});
          for (std::size_t b = 0; b < blocks; ++b) {
            CAPTURE(b);
            CHECK(difference(sum.data() + b * block_elements, expected[b].data(), block_elements) ==
                  -1);
            check_scan(scan[b], scan_oracle(expected[b], true));
          }
        }
    }
}

TEST_CASE("a nonfinite value at any place of a block is counted and located", "[kernels]")
{
  const auto devices = tested_devices();
  std::vector<std::size_t> places = {0, 1, 4094, 4095};
  for (std::size_t i = 2; i < 80; ++i) places.push_back(i);
  for (std::size_t i = 100; i < 4096; i += 173) places.push_back(i);
  Values values(3);
  for (Precision precision : precisions)
    for (std::size_t place : places) {
      Stored data(precision, block_elements);
      for (std::size_t i = 0; i < block_elements; ++i) data.set(i, i % 7 == 0 ? -3.5f : 0.25f);
      data.set(place, values.nonfinite());
      const void* source = data.data();
      const SumBlock one{0, 1, precision};
      for (const auto& device : devices) {
        CAPTURE(device->name(), name_of(precision), place);
        Floats sum(block_elements);
        BlockScan scan;
        device->sum_blocks({1, &one, &source, sum.data(), &scan});
        CHECK(scan.nonfinite == 1);
        CHECK(scan.first_nonfinite == place);
        CHECK(scan.largest_finite == bits_of(3.5f));
        CHECK(scan.sum_of_squares == 0);
        const BlockScan again = device->scan(source, precision, block_elements);
        CHECK(again.nonfinite == 1);
        CHECK(again.first_nonfinite == place);
      }
    }
}

TEST_CASE("accumulate and scan take any number of elements at any alignment", "[kernels]")
{
  const auto devices = tested_devices();
  for (Precision precision : precisions)
    for (std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{16},
                                 std::size_t{31}, std::size_t{33}, std::size_t{4095},
                                 std::size_t{4096}, std::size_t{4097}, std::size_t{3 * 4096 + 77}})
      for (std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{7}})
        for (int bad : {0, 3}) {
          if (bad > 0 && elements == 0) continue;
          Values values(elements + offset);
          Stored gradient(precision, elements, offset), start(Precision::fp32, elements, offset);
          std::vector<float> plain(elements), first(elements), added(elements);
          for (std::size_t i = 0; i < elements; ++i) gradient.set(i, values.any_finite(precision));
          for (int k = 0; k < bad; ++k) gradient.set(values.below(elements), values.nonfinite());
          for (std::size_t i = 0; i < elements; ++i) {
            start.set(i, i % 5 == 0 ? -0.0f : values.normal());
            plain[i] = gradient.get(i);
            first[i] = 0.0f + plain[i];
            added[i] = start.get(i) + plain[i];
          }
          const BlockScan expected = scan_oracle(plain, false);
          for (const auto& device : devices) {
            CAPTURE(device->name(), name_of(precision), elements, offset, bad);
            check_scan(device->scan(gradient.data(), precision, elements), expected);
            Stored sum = start;
            auto* p = static_cast<float*>(sum.data());
            check_scan(device->accumulate(p, gradient.data(), precision, elements, false),
                       expected);
            CHECK(difference(p, added.data(), elements) == -1);
            for (std::size_t i = 0; i < elements; ++i)
              p[i] = std::numeric_limits<float>::quiet_NaN();
            check_scan(device->accumulate(p, gradient.data(), precision, elements, true), expected);
            CHECK(difference(p, first.data(), elements) == -1);
          }
        }
}

TEST_CASE("a whole array of nonfinite values is counted, from the first", "[kernels]")
{
  for (const auto& device : tested_devices()) {
    CAPTURE(device->name());
    std::vector<float> values(10000, std::numeric_limits<float>::infinity());
    const BlockScan scan = device->scan(values.data(), Precision::fp32, values.size());
    CHECK(scan.nonfinite == 10000);
    CHECK(scan.first_nonfinite == 0);
    CHECK(scan.largest_finite == 0);
  }
}

namespace {

/// A whole update of some blocks, and what the formulas of block.hpp make of it.
struct AdamCase {
  std::size_t blocks;
  bool with_ema;
  std::vector<AdamScalars> scalars;  ///< one a block
  Floats gradient, master, exp_avg, exp_avg_sq, ema;

  AdamCase(std::size_t count, bool ema_too, std::vector<AdamScalars> numbers, std::uint64_t seed)
      : blocks(count),
        with_ema(ema_too),
        scalars(std::move(numbers)),
        gradient(count * block_elements),
        master(gradient.size()),
        exp_avg(gradient.size()),
        exp_avg_sq(gradient.size()),
        ema(gradient.size())
  {
    Values values(seed);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      // Some elements with subnormal moments and gradients, some zero.
      const float size = i % 11 == 0 ? 0x1p-130f : i % 13 == 0 ? 0.0f : 1.0f;
      gradient[i] = values.normal() * size * 100;
      master[i] = values.normal();
      exp_avg[i] = values.normal() * size * 0.1f;
      exp_avg_sq[i] = std::fabs(values.normal()) * size * 0.01f;
      ema[i] = values.normal();
    }
  }
};

struct AdamResult {
  Floats master, exp_avg, exp_avg_sq, ema;
  std::vector<Stored> weights;
  std::vector<AdamScan> scan;
};

AdamResult empty_result(const AdamCase& c, std::size_t weights_offset)
{
  const std::size_t n = c.blocks * block_elements;
  AdamResult r{Floats(n, -5), Floats(n, -5), Floats(n, -5), Floats(n, -5), {}, {}};
  for (const AdamScalars& s : c.scalars)
    r.weights.emplace_back(s.weights, block_elements, weights_offset);
  r.scan.resize(c.blocks);
  return r;
}

AdamResult adam_oracle(AdamCase& c)
{
  AdamResult r = empty_result(c, 0);
  for (std::size_t b = 0; b < c.blocks; ++b) {
    const AdamScalars& s = c.scalars[b];
    for (std::size_t i = 0; i < block_elements; ++i) {
      const std::size_t at = b * block_elements + i;
      float p = c.master[at], m = c.exp_avg[at], v = c.exp_avg_sq[at], e = c.ema[at];
      float g = 0;
      if (!s.keep) {
        g = s.grad_factor * c.gradient[at];
        if (s.l2 != 0) g = g + s.l2 * p;
        m = s.beta1 * m + s.one_minus_beta1 * g;
        v = s.beta2 * v + s.one_minus_beta2 * (g * g);
        p = s.decay * p - s.step_size * (m / (std::sqrt(v) * s.inv_sqrt_bias2 + s.epsilon));
        e = s.ema_decay * e + s.one_minus_ema_decay * p;
      }
      r.master[at] = p;
      r.exp_avg[at] = m;
      r.exp_avg_sq[at] = v;
      if (c.with_ema) r.ema[at] = e;
      r.weights[b].set(i, p);
      const float seen[] = {g, m, v, p, r.weights[b].get(i), c.with_ema ? e : 0.0f};
      for (std::uint32_t k = 0; k < 6; ++k)
        if (!std::isfinite(seen[k])) {
          if (r.scan[b].nonfinite++ == 0) {
            r.scan[b].first = static_cast<std::uint32_t>(i);
            r.scan[b].array = static_cast<AdamArray>(k);
          }
          break;
        }
    }
  }
  return r;
}

AdamResult run_adam(Device& device, AdamCase& c, bool in_place, bool stream, std::size_t offset)
{
  AdamResult r = empty_result(c, offset);
  std::vector<AdamBlock> table;
  for (std::size_t b = 0; b < c.blocks; ++b)
    table.push_back({r.weights[b].data(), static_cast<std::uint32_t>(b)});
  if (in_place) {
    r.master = c.master;
    r.exp_avg = c.exp_avg;
    r.exp_avg_sq = c.exp_avg_sq;
    if (c.with_ema) r.ema = c.ema;
  }
  AdamBlocks work;
  work.blocks = c.blocks;
  work.block = table.data();
  work.scalars = c.scalars.data();
  work.gradient = c.gradient.data();
  work.master = in_place ? r.master.data() : c.master.data();
  work.exp_avg = in_place ? r.exp_avg.data() : c.exp_avg.data();
  work.exp_avg_sq = in_place ? r.exp_avg_sq.data() : c.exp_avg_sq.data();
  work.new_master = r.master.data();
  work.new_exp_avg = r.exp_avg.data();
  work.new_exp_avg_sq = r.exp_avg_sq.data();
  if (c.with_ema) {
    work.ema = in_place ? r.ema.data() : c.ema.data();
    work.new_ema = r.ema.data();
  }
  work.scan = r.scan.data();
  work.stream = stream;
  device.adam_blocks(work);
  return r;
}

void check_adam(AdamCase& c, AdamResult& seen, AdamResult& expected)
{
  const std::size_t n = c.blocks * block_elements;
  CHECK(difference(seen.master.data(), expected.master.data(), n) == -1);
  CHECK(difference(seen.exp_avg.data(), expected.exp_avg.data(), n) == -1);
  CHECK(difference(seen.exp_avg_sq.data(), expected.exp_avg_sq.data(), n) == -1);
  CHECK(difference(seen.ema.data(), expected.ema.data(), n) == -1);
  for (std::size_t b = 0; b < c.blocks; ++b) {
    CAPTURE(b);
    CHECK(difference(seen.weights[b].data(), expected.weights[b].data(), c.scalars[b].weights,
                     block_elements) == -1);
    CHECK(seen.scan[b].nonfinite == expected.scan[b].nonfinite);
    CHECK(seen.scan[b].first == expected.scan[b].first);
    CHECK(seen.scan[b].array == expected.scan[b].array);
  }
}

AdamScalars usual(Precision weights)
{
  AdamScalars s;
  s.grad_factor = 0.0123f;
  s.decay = 0.9999f;
  s.step_size = 2e-3f;
  s.inv_sqrt_bias2 = 7.1f;
  s.ema_decay = 0.999f;
  s.one_minus_ema_decay = 0.001f;
  s.weights = weights;
  return s;
}

/// Blocks of every kind in one call: each precision, with coupled decay, kept.
std::vector<AdamScalars> mixed_scalars()
{
  std::vector<AdamScalars> all;
  for (Precision precision : precisions) {
    all.push_back(usual(precision));
    all.push_back(usual(precision));
    all.back().l2 = 0.01f;
    all.push_back(usual(precision));
    all.back().keep = true;
  }
  return all;
}

}  // namespace

TEST_CASE("updates have the documented bits: staged, streamed, in place, kept, with EMA",
          "[kernels]")
{
  const auto devices = tested_devices();
  for (bool with_ema : {false, true})
    for (bool damaged : {false, true}) {
      const auto scalars = mixed_scalars();
      AdamCase c(scalars.size(), with_ema, scalars, 42);
      if (damaged) {
        Values values(5);
        for (std::size_t b = 0; b < c.blocks; ++b) {
          Floats* arrays[] = {&c.gradient, &c.master, &c.exp_avg, &c.exp_avg_sq, &c.ema};
          for (int k = 0; k < 4; ++k)
            (*arrays[values.below(5)])[b * block_elements + values.below(block_elements)] =
                values.nonfinite();
          // Model-precision overflow only: finite in fp32.
          c.master[b * block_elements + values.below(block_elements)] = 7e4f;
          c.master[b * block_elements + values.below(block_elements)] = 3.4e38f;
          // fp32 overflow of the square, a negative second moment.
          c.gradient[b * block_elements + values.below(block_elements)] = 3e38f;
          c.exp_avg_sq[b * block_elements + values.below(block_elements)] = -4;
        }
      }
      AdamResult expected = adam_oracle(c);
      std::uint32_t bad = 0;
      for (const AdamScan& scan : expected.scan) bad += scan.nonfinite;
      CHECK((bad > 0) == damaged);
      for (const auto& device : devices)
        for (bool in_place : {false, true})
          for (bool stream : {false, true})
            for (std::size_t offset : {0, 3}) {
              CAPTURE(device->name(), with_ema, damaged, in_place, stream, offset);
              AdamResult seen = run_adam(*device, c, in_place, stream, offset);
              check_adam(c, seen, expected);
            }
    }
}

TEST_CASE("the update names the first nonfinite array at any element", "[kernels]")
{
  const auto devices = tested_devices();
  constexpr float inf = std::numeric_limits<float>::infinity();
  struct Damage {
    Floats AdamCase::*array;
    float value;
    AdamArray named;
  };
  const Damage damages[] = {{&AdamCase::gradient, inf, AdamArray::unscaled_gradient},
                            {&AdamCase::exp_avg, -inf, AdamArray::exp_avg},
                            {&AdamCase::exp_avg_sq, inf, AdamArray::exp_avg_sq},
                            {&AdamCase::exp_avg_sq, -1, AdamArray::master},
                            {&AdamCase::master, std::nanf(""), AdamArray::master},
                            {&AdamCase::master, 7e4f, AdamArray::weights},
                            {&AdamCase::ema, inf, AdamArray::ema}};
  for (const Damage& damage : damages)
    for (std::size_t place = 0; place < block_elements; place += 251) {
      AdamCase c(1, true, {usual(Precision::fp16)}, 9);
      (c.*damage.array)[place] = damage.value;
      for (const auto& device : devices) {
        CAPTURE(device->name(), place, static_cast<int>(damage.named));
        const AdamResult seen = run_adam(*device, c, false, true, 0);
        CHECK(seen.scan[0].nonfinite == 1);
        CHECK(seen.scan[0].first == place);
        CHECK(seen.scan[0].array == damage.named);
      }
    }
}

TEST_CASE("a kept block keeps its bits, signalling NaNs too, and reads no gradient", "[kernels]")
{
  AdamScalars s = usual(Precision::bf16);
  s.keep = true;
  AdamCase c(1, true, {s}, 10);
  const float signalling = float_from_bits(0x7f800123);
  std::memcpy(&c.exp_avg[17], &signalling, 4);
  for (const auto& device : tested_devices()) {
    CAPTURE(device->name());
    for (std::size_t i = 0; i < block_elements; ++i) c.gradient[i] = std::nanf("");
    AdamResult seen = run_adam(*device, c, false, true, 0);
    CHECK(std::memcmp(seen.master.data(), c.master.data(), 4 * block_elements) == 0);
    CHECK(std::memcmp(seen.exp_avg.data(), c.exp_avg.data(), 4 * block_elements) == 0);
    CHECK(std::memcmp(seen.exp_avg_sq.data(), c.exp_avg_sq.data(), 4 * block_elements) == 0);
    CHECK(std::memcmp(seen.ema.data(), c.ema.data(), 4 * block_elements) == 0);
    CHECK(seen.scan[0].nonfinite == 1);
    CHECK(seen.scan[0].array == AdamArray::exp_avg);
  }
}

TEST_CASE("twenty updates follow Adam in long double", "[kernels]")
{
  constexpr int steps = 20;
  for (bool decoupled : {false, true})
    for (const auto& device : tested_devices()) {
      CAPTURE(device->name(), decoupled);
      const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.1,
                   factor = 1.0 / 1024;
      AdamCase c(1, false, {usual(Precision::fp32)}, 77);
      Values values(78);
      std::vector<long double> p(block_elements), m(block_elements), v(block_elements);
      for (std::size_t i = 0; i < block_elements; ++i) {
        c.exp_avg[i] = c.exp_avg_sq[i] = 0;
        p[i] = c.master[i];
      }
      for (int t = 1; t <= steps; ++t) {
        const double bias1 = 1 - std::pow(beta1, t), bias2 = 1 - std::pow(beta2, t);
        AdamScalars& s = c.scalars[0];
        s.grad_factor = static_cast<float>(factor);
        s.beta1 = static_cast<float>(beta1), s.one_minus_beta1 = static_cast<float>(1 - beta1);
        s.beta2 = static_cast<float>(beta2), s.one_minus_beta2 = static_cast<float>(1 - beta2);
        s.l2 = decoupled ? 0.0f : static_cast<float>(decay);
        s.decay = decoupled ? static_cast<float>(1 - lr * decay) : 1.0f;
        s.step_size = static_cast<float>(lr / bias1);
        s.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(bias2));
        s.epsilon = static_cast<float>(eps);
        for (std::size_t i = 0; i < block_elements; ++i) {
          c.gradient[i] = values.normal() * 1024;
          long double g = static_cast<long double>(c.gradient[i]) * factor;
          if (!decoupled) g += decay * p[i];
          m[i] = beta1 * m[i] + (1 - beta1) * g;
          v[i] = beta2 * v[i] + (1 - beta2) * g * g;
          if (decoupled) p[i] *= 1 - lr * decay;
          p[i] -= lr * (m[i] / bias1) / (std::sqrt(v[i] / bias2) + eps);
        }
        const AdamResult r = run_adam(*device, c, true, false, 0);
        c.master = r.master;
        c.exp_avg = r.exp_avg;
        c.exp_avg_sq = r.exp_avg_sq;
      }
      long double worst = 0;
      for (std::size_t i = 0; i < block_elements; ++i)
        worst = std::max(worst, std::fabs(p[i] - c.master[i]) / std::max(1.0L, std::fabs(p[i])));
      // Each step rounds p by at most 2^-25 relative and its own change (lr at most) by a few
      // 2^-24.
      CHECK(worst < steps * 0x1p-24L);
      CHECK(worst > 0);
    }
}

TEST_CASE("conversions round as the scalar ones on every device, for any count", "[kernels]")
{
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)  // boundaries of bf16; NaNs, infinities
    for (std::uint32_t lower : {0u, 0x7fffu, 0x8000u, 0x8001u})
      values.push_back(float_from_bits((upper << 16) | lower));
  for (std::uint32_t half = 0; half < 0x7c00; ++half) {  // boundaries of fp16
    const std::uint32_t low = bits_of(float_from_half(Half{static_cast<std::uint16_t>(half)}));
    const std::uint32_t high = bits_of(
        half == 0x7bff ? 65536.0f : float_from_half(Half{static_cast<std::uint16_t>(half + 1)}));
    const float middle = (float_from_bits(low) + float_from_bits(high)) / 2;
    for (int off = -1; off <= 1; ++off) {
      const float value = float_from_bits(bits_of(middle) + static_cast<std::uint32_t>(off));
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 40009)
    values.push_back(float_from_bits(static_cast<std::uint32_t>(bits)));

  for (const auto& device : tested_devices())
    for (Precision precision : precisions)
      for (std::size_t count : {values.size(), std::size_t{0}, std::size_t{1}, std::size_t{4099}}) {
        CAPTURE(device->name(), name_of(precision), count);
        Stored to(precision, count + 1), expected(precision, count + 1);
        for (std::size_t i = 0; i < count; ++i) expected.set(i, values[i]);
        to.set(count, 12);  // one past the end stays
        expected.set(count, 12);
        device->convert(to.data(), precision, values.data(), count);
        CHECK(difference(to.data(), expected.data(), precision, count + 1) == -1);
      }
}

TEST_CASE("every fp16 and bf16 value is read exactly on every device", "[kernels]")
{
  for (const auto& device : tested_devices())
    for (Precision precision : {Precision::fp16, Precision::bf16}) {
      CAPTURE(device->name(), name_of(precision));
      std::vector<std::uint16_t> stored(0x10000);
      for (std::uint32_t b = 0; b < 0x10000; ++b) stored[b] = static_cast<std::uint16_t>(b);
      std::vector<float> sum(stored.size()), expected(stored.size());
      for (std::size_t i = 0; i < stored.size(); ++i)
        expected[i] = 0.0f + load_element(stored.data(), precision, i);
      const BlockScan scan =
          device->accumulate(sum.data(), stored.data(), precision, stored.size(), true);
      CHECK(difference(sum.data(), expected.data(), sum.size()) == -1);
      CHECK(scan.nonfinite == (precision == Precision::fp16 ? 2u * 0x400 : 2u * 0x80));
      CHECK(scan.first_nonfinite == (precision == Precision::fp16 ? 0x7c00u : 0x7f80u));
    }
}

TEST_CASE("digests are the documented sums and see every bit and place", "[kernels]")
{
  constexpr std::size_t blocks = 3;
  for (Precision precision : precisions) {
    Values values(21);
    Stored data(precision, blocks * block_elements);
    for (std::size_t i = 0; i < blocks * block_elements; ++i) data.set(i, values.normal());
    std::vector<std::uint64_t> expected(blocks);
    for (std::size_t i = 0; i < blocks * block_elements; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, static_cast<char*>(data.data()) + i * bytes_of(precision),
                  bytes_of(precision));
      expected[i / block_elements] += mix64(mix64(i % block_elements) ^ bits);
    }
    for (const auto& device : tested_devices()) {
      CAPTURE(device->name(), name_of(precision));
      std::vector<std::uint64_t> digest(blocks);
      device->digest_blocks(digest.data(), data.data(), precision, blocks);
      CHECK(digest == expected);
      Stored changed = data;
      std::uint16_t one;
      std::memcpy(&one, static_cast<char*>(changed.data()) + 4100 * bytes_of(precision), 2);
      one ^= 1;
      std::memcpy(static_cast<char*>(changed.data()) + 4100 * bytes_of(precision), &one, 2);
      device->digest_blocks(digest.data(), changed.data(), precision, blocks);
      CHECK(digest[0] == expected[0]);
      CHECK(digest[1] != expected[1]);
      CHECK(digest[2] == expected[2]);
      Stored swapped = data;
      const float a = data.get(5), b = data.get(6);
      REQUIRE(a != b);
      swapped.set(5, b);
      swapped.set(6, a);
      device->digest_blocks(digest.data(), swapped.data(), precision, blocks);
      CHECK(digest[0] != expected[0]);
    }
  }
}

#if defined(__x86_64__)

TEST_CASE("kernels neither obey nor change the caller's floating-point environment", "[kernels]")
{
  // Values whose results need subnormals and rounding to nearest.
  constexpr std::size_t n = block_elements;
  const auto devices = tested_devices();
  AdamCase c(1, true, {usual(Precision::fp16)}, 31);
  for (std::size_t i = 0; i < n; i += 2) {
    c.gradient[i] = 0x1.234568p-120f;
    c.exp_avg[i] = 0x1.5p-130f;
    c.exp_avg_sq[i] = 0x1p-149f;
    c.master[i] = 0x1.1p-127f;
  }
  AdamResult expected = adam_oracle(c);
  Stored a(Precision::fp16, n), b(Precision::fp16, n), x(Precision::fp32, n), y(Precision::fp32, n);
  for (std::size_t i = 0; i < n; ++i) {
    a.set(i, float_from_half(Half{static_cast<std::uint16_t>(i % 0x400)}));  // fp16 subnormals
    b.set(i, 1 + static_cast<float>(i) * 0x1p-10f);
    x.set(i, float_from_bits(static_cast<std::uint32_t>(3 * i + 1)));  // fp32 subnormals
    y.set(i, float_from_bits(static_cast<std::uint32_t>(5 * i)));
  }
  std::vector<float> half_sum(n), float_sum(n), added(n);
  for (std::size_t i = 0; i < n; ++i) {
    half_sum[i] = a.get(i) + b.get(i);
    float_sum[i] = x.get(i) + y.get(i);
    added[i] = 0x1.000002p0f + a.get(i);
  }
  const BlockScan half_scan = scan_oracle(half_sum, true),
                  float_scan = scan_oracle(float_sum, true);
  Stored halves(Precision::fp16, n);
  for (std::size_t i = 0; i < n; ++i) halves.set(i, half_sum[i] * 0x1p-17f);
  std::vector<float> to_round(n);
  for (std::size_t i = 0; i < n; ++i) to_round[i] = half_sum[i] * 0x1p-17f;

  for (const auto& device : devices) {
    CAPTURE(device->name());
    const unsigned before = _mm_getcsr();
    // FTZ, DAZ, rounding up, all exceptions masked, one sticky flag (inexact) set.
    const unsigned hostile = 0x8000u | 0x0040u | 0x4000u | 0x1f80u | 0x0020u;
    const SumBlock tables[] = {{0, 2, Precision::fp16}, {2, 2, Precision::fp32}};
    const void* sources[] = {a.data(), b.data(), x.data(), y.data()};
    Floats sum(2 * n), running(n, 0x1.000002p0f);
    BlockScan scans[2], running_scan;
    Stored rounded(Precision::fp16, n);
    _mm_setcsr(hostile);
    device->sum_blocks({2, tables, sources, sum.data(), scans});
    const unsigned after_sum = _mm_getcsr();
    running_scan = device->accumulate(running.data(), a.data(), Precision::fp16, n, false);
    const unsigned after_accumulate = _mm_getcsr();
    device->convert(rounded.data(), Precision::fp16, to_round.data(), n);
    const unsigned after_convert = _mm_getcsr();
    AdamResult seen = run_adam(*device, c, false, true, 0);
    const unsigned after_adam = _mm_getcsr();
    _mm_setcsr(before);
    CHECK(after_sum == hostile);
    CHECK(after_accumulate == hostile);
    CHECK(after_convert == hostile);
    CHECK(after_adam == hostile);
    CHECK(difference(sum.data(), half_sum.data(), n) == -1);
    CHECK(difference(sum.data() + n, float_sum.data(), n) == -1);
    check_scan(scans[0], half_scan);
    check_scan(scans[1], float_scan);
    CHECK(difference(running.data(), added.data(), n) == -1);
    CHECK(running_scan.largest_finite == bits_of(float_from_half(Half{0x3ff})));
    CHECK(difference(rounded.data(), halves.data(), Precision::fp16, n) == -1);
    check_adam(c, seen, expected);
  }
}

#endif

TEST_CASE("device memory is aligned and zeroed, whatever was there before", "[kernels]")
{
  for (const auto& device : tested_devices()) {
    CAPTURE(device->name());
    for (std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{9} << 20}) {
      void* first = device->allocate(bytes);
      std::memset(first, 0xff, bytes);
      device->deallocate(first);
      auto* second = static_cast<unsigned char*>(device->allocate(bytes));
      CHECK(reinterpret_cast<std::uintptr_t>(second) % 64 == 0);
      bool zero = true;
      for (std::size_t i = 0; i < bytes; ++i) zero = zero && second[i] == 0;
      CHECK(zero);
      if (bytes > 0) {
        std::vector<unsigned char> mine(bytes, 3), back(bytes);
        device->copy(second, mine.data(), bytes);
        device->copy(back.data(), second, bytes);
        CHECK(mine == back);
      }
      device->deallocate(second);
    }
    CHECK_THROWS_AS(device->allocate(std::size_t{1} << 62), std::bad_alloc);
    device->deallocate(nullptr);
    CHECK(device->kind() == DeviceKind::host);
  }
}

TEST_CASE("TUTTI_SIMD limits the instruction set and refuses what it does not know", "[kernels]")
{
  const auto sets = host_instruction_sets();
  REQUIRE_FALSE(sets.empty());
  CHECK(sets.back() == "baseline");
  const char* old = std::getenv("TUTTI_SIMD");
  const std::string kept = old == nullptr ? "" : old;
  setenv("TUTTI_SIMD", "baseline", 1);
  CHECK(make_host_device()->name() == "host (baseline)");
  setenv("TUTTI_SIMD", "avx2", 1);
  const bool has_avx2 = std::find(sets.begin(), sets.end(), "avx2") != sets.end();
  CHECK(make_host_device()->name() == (has_avx2 ? "host (AVX2)" : "host (baseline)"));
  setenv("TUTTI_SIMD", "avx512", 1);
  CHECK(make_host_device()->name() == make_host_device("")->name());
  setenv("TUTTI_SIMD", "sse9", 1);
  CHECK_THROWS_AS(make_host_device(), ConfigError);
  CHECK_THROWS_WITH(make_host_device(), tutti::test::has_text("TUTTI_SIMD=sse9"));
  if (old == nullptr)
    unsetenv("TUTTI_SIMD");
  else
    setenv("TUTTI_SIMD", kept.c_str(), 1);
}

TEST_CASE("without CUDA there is no CUDA device, and the error says so", "[kernels]")
{
  if (cuda_device_count() == 0) CHECK_THROWS_AS(make_cuda_device(0), DeviceError);
  CHECK_THROWS_AS(make_cuda_device(-1), DeviceError);
}

TEST_CASE("the memory bound is a rate", "[kernels]")
{
  const MemoryBound bound = measure_memory_bounds(1 << 20, 0.03);
  CHECK(bound.copy > 0);
  CHECK(bound.multiply > 0);
  CHECK(bound.triad > 0);
  CHECK(bound.best() >= bound.copy);
  CHECK(bound.best() < 1e5);
}

TEST_CASE("vectors give the state digest of its definition", "[kernels]")
{
  std::vector<float> values(1100);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mix64(i)));
  const std::uint64_t seed = mix64(hash_of("adam/w"), hash_of("exp_avg"));
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{0xfffffffd}, ~std::uint64_t{5}})
    for (const std::size_t count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 1000, 1099})
      CHECK(digest_elements(seed, first, values.data() + 1, count) ==
            state_digest_part("adam/w", "exp_avg", first, values.data() + 1, count));
}
