// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/ledger.hpp"

#include <algorithm>

#include "tutti/digest.hpp"

namespace tutti {
namespace {

/// Inserts `interval` into an ascending list of disjoint intervals and merges it with what it
/// touches.
void insert_merged(std::vector<Interval>& list, Interval interval)
{
  if (interval.empty()) return;
  auto at = std::lower_bound(list.begin(), list.end(), interval,
                             [](Interval a, Interval b) { return a.begin < b.begin; });
  at = list.insert(at, interval);
  if (at + 1 != list.end() && at->end == (at + 1)->begin) {
    at->end = (at + 1)->end;
    list.erase(at + 1);
  }
  if (at != list.begin() && (at - 1)->end == at->begin) {
    (at - 1)->end = at->end;
    list.erase(at);
  }
}

std::uint64_t total(const std::vector<Interval>& list)
{
  std::uint64_t sum = 0;
  for (Interval interval : list) sum += interval.size();
  return sum;
}

}  // namespace

Interval SampleLedger::window(std::uint64_t samples) const
{
  if (!replay.empty()) return replay.front();
  std::uint64_t end = next + samples;
  if (epoch_samples != 0) end = std::min(end, (next / epoch_samples + 1) * epoch_samples);
  return {next, end};
}

void SampleLedger::commit(Interval interval)
{
  std::erase(replay, interval);
  next = std::max(next, interval.end);
  insert_merged(committed, interval);
}

void SampleLedger::drop(Interval interval)
{
  std::erase(replay, interval);
  next = std::max(next, interval.end);
  insert_merged(dropped, interval);
}

void SampleLedger::keep_for_replay(Interval interval)
{
  next = std::max(next, interval.end);
  if (std::find(replay.begin(), replay.end(), interval) != replay.end()) return;
  replay.insert(std::lower_bound(replay.begin(), replay.end(), interval,
                                 [](Interval a, Interval b) { return a.begin < b.begin; }),
                interval);
}

std::uint64_t SampleLedger::committed_samples() const { return total(committed); }
std::uint64_t SampleLedger::dropped_samples() const { return total(dropped); }

std::uint64_t SampleLedger::digest() const
{
  std::uint64_t hash = mix64(epoch_samples, next);
  for (const auto* list : {&replay, &committed, &dropped}) {
    hash = mix64(hash, list->size());
    for (Interval interval : *list) hash = mix64(mix64(hash, interval.begin), interval.end);
  }
  return hash;
}

}  // namespace tutti
