// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// From recorded operations to every directory that a crash may leave behind. What a file system may
// do with operations that nobody synced:
// - of a file's writes and changes of size any subset is on disk, in no order; a write may be there
//   in part (whole pages);
// - a directory's creations, renames and removals are on disk in their order, up to some point;
// - a file's data and the names that point to it know nothing of each other.
// A sync makes durable what had ended before it began; of a file's data only what the same process
// wrote (each rank may be on a node of its own) unless `one_node`. An operation that has begun may
// be on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "crash_recorder.hpp"

namespace tutti::test {

/// A file's bytes; reserved room makes it large, and it is zero.
struct Content {
  std::string head;      ///< without zeros at its end
  std::size_t size = 0;  ///< with them
  bool operator==(const Content&) const = default;
};

/// A directory's files and subdirectories by path relative to it.
struct Tree {
  std::map<std::string, Content> files;
  std::vector<std::string> directories;  ///< a parent before what is in it
};

/// A tree as it is on disk, and the inodes of its files.
struct Snapshot {
  Tree tree;
  std::map<std::string, std::uint64_t> inodes;
};
Snapshot snapshot_of(const std::string& directory);

struct CrashState {
  std::uint64_t tick = 0;  ///< of the crash
  std::string key;         ///< equal keys: equal trees
  std::function<Tree()> tree;
};

class History {
 public:
  /// `operations` in `directory` (absolute) that began with `before`, all of it durable.
  History(std::string directory, Snapshot before, std::vector<Operation> operations,
          bool one_node = false);

  /// The same without one of its operations (an index of `operations()`), as if a program had never
  /// asked for it.
  History without(std::size_t operation) const;
  /// The same where any process's sync covers all of a file.
  History on_one_node() const { return {directory_, before_, operations_, true}; }

  const std::vector<Operation>& operations() const { return operations_; }  ///< as they began
  std::uint64_t end() const;
  /// With everything applied.
  Tree last() const;
  /// All legal states of a crash at any tick: exhaustive where at most `exhaustive` operations on
  /// visible files are not durable, otherwise none, all, all but one, one alone, and `samples`
  /// random ones of a fixed seed, with writes torn between pages. Files with a hidden name (a
  /// reader passes them over) get one random state a tick.
  void each(const std::function<void(const CrashState&)>& visit) const;

  static constexpr std::size_t exhaustive = 8;
  static constexpr std::size_t samples = 8;

 private:
  struct File {
    Content base;                         ///< at the start
    std::vector<std::size_t> operations;  ///< on its data
  };
  struct Names {
    std::map<std::string, std::size_t> files;  ///< by path
    std::vector<std::string> directories;
  };
  /// What of a write is on disk: nothing, all, or the pages that a hash chooses.
  enum class Part : std::uint8_t { none, all, torn };
  using Choice = std::map<std::size_t, Part>;  ///< by operation

  std::string relative(const std::string& path) const;
  bool durable(std::size_t operation, std::uint64_t tick) const;
  void apply_name(Names& names, std::size_t operation) const;
  Content content(std::size_t file, const Choice& choice, std::uint64_t seed) const;
  void visit_data(std::uint64_t tick, const Names& names,
                  const std::function<void(const CrashState&)>& visit) const;
  void emit(std::uint64_t tick, const Names& names, const Choice& choice, std::uint64_t seed,
            const std::function<void(const CrashState&)>& visit) const;

  std::string directory_;
  Snapshot before_;
  std::vector<Operation> operations_;
  bool one_node_;
  std::vector<File> files_;
  std::vector<std::size_t> file_of_;                              ///< by operation
  std::map<std::string, std::vector<std::size_t>> by_directory_;  ///< operations on names
};

}  // namespace tutti::test
