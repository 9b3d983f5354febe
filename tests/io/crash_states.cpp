// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The model is in the header; here it is carried out tick by tick.
#include "crash_states.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>

#include "tutti/digest.hpp"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t page = 4096;
constexpr std::size_t no_file = std::numeric_limits<std::size_t>::max();

bool on_names(const Operation& operation)
{
  switch (operation.kind) {
    case OperationKind::create:
    case OperationKind::make_directory:
    case OperationKind::rename:
    case OperationKind::remove:
      return true;
    default:
      return false;
  }
}

bool on_data(const Operation& operation)
{
  switch (operation.kind) {
    case OperationKind::write:
    case OperationKind::truncate:
    case OperationKind::extend:
      return true;
    default:
      return false;
  }
}

bool hidden(const std::string& path) { return fs::path(path).filename().string()[0] == '.'; }

Content content_of(std::string bytes, std::size_t size)
{
  bytes.resize(bytes.find_last_not_of('\0') + 1);
  return {std::move(bytes), size};
}

std::string parent_of(const std::string& path) { return fs::path(path).parent_path().string(); }

}  // namespace

Snapshot snapshot_of(const std::string& directory)
{
  Snapshot snapshot;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string path = fs::relative(entry.path(), directory).string();
    if (entry.is_directory()) {
      snapshot.tree.directories.push_back(path);
      continue;
    }
    std::ifstream in(entry.path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const std::size_t size = bytes.size();
    snapshot.tree.files[path] = content_of(std::move(bytes), size);
    struct stat status = {};
    ::stat(entry.path().c_str(), &status);
    snapshot.inodes[path] = status.st_ino;
  }
  return snapshot;
}

History::History(std::string directory, Snapshot before, std::vector<Operation> operations,
                 bool one_node)
    : directory_(std::move(directory)),
      before_(std::move(before)),
      operations_(std::move(operations)),
      one_node_(one_node)
{
  std::sort(operations_.begin(), operations_.end(),
            [](const Operation& a, const Operation& b) { return a.begin < b.begin; });
  std::map<std::uint64_t, std::size_t> current;  // inode numbers are used again
  for (const auto& [path, inode] : before_.inodes) {
    current[inode] = files_.size();
    files_.push_back({before_.tree.files.at(path), {}});
  }
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_[i];
    std::size_t file = no_file;
    if (operation.kind == OperationKind::create) {
      file = current[operation.inode] = files_.size();
      files_.emplace_back();
    } else if (on_data(operation) || operation.kind == OperationKind::sync) {
      const auto known = current.find(operation.inode);
      if (known == current.end())
        throw std::logic_error("a file whose creation was not recorded: " + operation.path);
      file = known->second;
    }
    file_of_.push_back(file);
    if (on_data(operation)) files_[file].operations.push_back(i);
    if (!on_names(operation)) continue;
    const std::string folder = parent_of(operation.path);
    if (operation.kind == OperationKind::rename && parent_of(operation.to) != folder)
      throw std::logic_error("a rename to another directory: " + operation.to);
    by_directory_[folder].push_back(i);
  }
}

History History::without(std::size_t operation) const
{
  std::vector<Operation> rest = operations_;
  rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(operation));
  return {directory_, before_, std::move(rest), one_node_};
}

std::uint64_t History::end() const
{
  std::uint64_t last = 0;
  for (const Operation& operation : operations_) last = std::max(last, operation.end);
  return last;
}

std::string History::relative(const std::string& path) const
{
  return path.size() <= directory_.size() ? std::string() : path.substr(directory_.size() + 1);
}

bool History::durable(std::size_t index, std::uint64_t tick) const
{
  const Operation& operation = operations_[index];
  return std::any_of(operations_.begin(), operations_.end(), [&](const Operation& sync) {
    if (sync.end > tick || sync.begin < operation.end) return false;
    if (on_names(operation))
      return sync.kind == OperationKind::sync_directory && sync.path == parent_of(operation.path);
    return sync.kind == OperationKind::sync &&
           file_of_[static_cast<std::size_t>(&sync - operations_.data())] == file_of_[index] &&
           (one_node_ || sync.process == operation.process);
  });
}

void History::apply_name(Names& names, std::size_t index) const
{
  const Operation& operation = operations_[index];
  const std::string path = relative(operation.path);
  switch (operation.kind) {
    case OperationKind::create:
      names.files[path] = file_of_[index];
      break;
    case OperationKind::make_directory:
      names.directories.push_back(path);
      break;
    case OperationKind::rename:
      names.files[relative(operation.to)] = names.files.at(path);
      names.files.erase(path);
      break;
    default:
      if (names.files.erase(path) == 0)
        names.directories.erase(
            std::remove(names.directories.begin(), names.directories.end(), path),
            names.directories.end());
  }
}

Content History::content(std::size_t file, const Choice& choice, std::uint64_t seed) const
{
  auto [bytes, size] = files_[file].base;
  for (const std::size_t index : files_[file].operations) {
    const auto chosen = choice.find(index);
    if (chosen == choice.end() || chosen->second == Part::none) continue;
    const Operation& operation = operations_[index];
    if (operation.kind == OperationKind::truncate) {
      size = operation.offset;
      bytes.resize(std::min(bytes.size(), size));
    }
    if (operation.kind == OperationKind::extend)
      size = std::max<std::size_t>(size, operation.offset);
    if (operation.kind != OperationKind::write) continue;
    const std::size_t end = operation.offset + operation.bytes.size();
    size = std::max(size, end);
    if (bytes.size() < end) bytes.resize(end);
    for (std::size_t at = operation.offset; at < end;) {
      const std::size_t next = std::min(end, (at / page + 1) * page);
      if (chosen->second == Part::all || mix64(mix64(seed, operation.begin), at) % 2 == 0)
        bytes.replace(at, next - at, operation.bytes, at - operation.offset, next - at);
      at = next;
    }
  }
  return content_of(std::move(bytes), size);
}

Tree History::last() const
{
  Tree tree;
  const std::uint64_t tick = end();
  Names names;
  names.directories = before_.tree.directories;
  std::size_t file = 0;
  for (const auto& entry : before_.inodes) names.files[entry.first] = file++;
  Choice all;
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    if (on_names(operations_[i])) apply_name(names, i);
    if (on_data(operations_[i])) all[i] = Part::all;
  }
  emit(tick, names, all, 0, [&](const CrashState& state) { tree = state.tree(); });
  return tree;
}

void History::emit(std::uint64_t tick, const Names& names, const Choice& choice, std::uint64_t seed,
                   const std::function<void(const CrashState&)>& visit) const
{
  CrashState state;
  state.tick = tick;
  // A directory that is not there takes everything in it away.
  std::set<std::string> there{""};
  for (const std::string& directory : names.directories)
    if (there.count(parent_of(directory)) != 0) {
      there.insert(directory);
      state.key += directory + "/\n";
    }
  std::map<std::string, std::size_t> visible;
  for (const auto& [path, file] : names.files)
    if (there.count(parent_of(path)) != 0) visible[path] = file;
  for (const auto& [path, file] : visible) {
    state.key += path + ":" + std::to_string(file);
    for (const std::size_t index : files_[file].operations) {
      const auto chosen = choice.find(index);
      if (chosen == choice.end() || chosen->second == Part::none) continue;
      state.key += " " + std::to_string(operations_[index].begin);
      if (chosen->second == Part::torn) state.key += "/" + std::to_string(seed);
    }
    state.key += "\n";
  }
  state.tree = [this, there, visible, choice, seed] {
    Tree tree;
    tree.directories.assign(std::next(there.begin()), there.end());
    for (const auto& [path, file] : visible) tree.files[path] = content(file, choice, seed);
    return tree;
  };
  visit(state);
}

void History::visit_data(std::uint64_t tick, const Names& names,
                         const std::function<void(const CrashState&)>& visit) const
{
  Choice certain;
  std::vector<std::size_t> open;  // begun, not durable, of files that have a name
  for (const auto& [path, file] : names.files)
    for (const std::size_t index : files_[file].operations) {
      if (operations_[index].begin > tick) continue;
      if (durable(index, tick))
        certain[index] = Part::all;
      else if (hidden(path))
        certain[index] = static_cast<Part>(mix64(tick, index) % 3);
      else
        open.push_back(index);
    }
  const std::size_t count = open.size();
  const auto with = [&](const std::function<Part(std::size_t)>& part, std::uint64_t seed) {
    Choice choice = certain;
    for (std::size_t i = 0; i < count; ++i) choice[open[i]] = part(i);
    emit(tick, names, choice, seed, visit);
  };
  const auto either = [](bool there) { return there ? Part::all : Part::none; };
  if (count <= exhaustive) {
    for (std::uint64_t set = 0; set < (std::uint64_t{1} << count); ++set)
      with([&](std::size_t i) { return either((set >> i & 1) != 0); }, 0);
  } else {
    with([&](std::size_t) { return Part::none; }, 0);
    with([&](std::size_t) { return Part::all; }, 0);
    for (std::size_t one = 0; one < count; ++one) {
      with([&](std::size_t i) { return either(i == one); }, 0);
      with([&](std::size_t i) { return either(i != one); }, 0);
    }
  }
  for (std::uint64_t sample = 1; count > 0 && sample <= samples; ++sample) {
    const std::uint64_t seed = mix64(tick, sample);
    with([&](std::size_t i) { return static_cast<Part>(mix64(seed, i) % 3); }, seed);
  }
}

void History::each(const std::function<void(const CrashState&)>& visit) const
{
  std::set<std::uint64_t> ticks;
  for (const Operation& operation : operations_) ticks.insert({operation.begin, operation.end});
  for (const std::uint64_t tick : ticks) {
    // How far each directory's names have come: from what is durable to what has begun.
    std::vector<std::vector<std::size_t>> begun;
    std::vector<std::size_t> least;
    for (const auto& entry : by_directory_) {
      auto& here = begun.emplace_back();
      std::size_t certain = 0;
      for (const std::size_t index : entry.second)
        if (operations_[index].begin <= tick) {
          here.push_back(index);
          if (durable(index, tick)) certain = here.size();
        }
      least.push_back(certain);
    }
    std::vector<std::size_t> reached = least;
    while (true) {
      Names names;
      names.directories = before_.tree.directories;
      std::size_t file = 0;
      for (const auto& entry : before_.inodes) names.files[entry.first] = file++;
      std::vector<std::size_t> done;
      for (std::size_t d = 0; d < begun.size(); ++d)
        done.insert(done.end(), begun[d].begin(),
                    begun[d].begin() + static_cast<std::ptrdiff_t>(reached[d]));
      std::sort(done.begin(), done.end());
      for (const std::size_t index : done) apply_name(names, index);
      visit_data(tick, names, visit);
      std::size_t d = 0;
      while (d < begun.size() && reached[d] == begun[d].size()) {
        reached[d] = least[d];
        ++d;
      }
      if (d == begun.size()) break;
      ++reached[d];
    }
  }
}

}  // namespace tutti::test
