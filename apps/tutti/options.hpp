// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One table declares every option of a command once: name, type, default, check and help. The table
// takes values from a TOML file, the environment and flags, in rising precedence, and says where
// each came from.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace tutti::apps {

/// Where an option's value came from; later ones win.
enum class Source { default_value, checkpoint, file, environment, flag };

/// What an option means to the other ranks and to a resumed run.
enum class Role {
  local,   ///< of this rank and invocation: paths, device, log
  launch,  ///< of this invocation; all ranks must agree
  run,  ///< defines the run: all ranks agree, and a resumed run takes it from the checkpoint unless
        ///< given
  fixed,  ///< like `run`, but a resumed run cannot change it
};

/// An option bound to the variable that holds its value; the variable's value at declaration is the
/// default.
struct Option {
  using Target = std::variant<std::uint64_t*, double*, std::string*, std::vector<std::string>*>;
  std::string name;      ///< of the flag and of the TOML key; the environment's is TUTTI_<NAME>
  std::string argument;  ///< placeholder in the help
  Target target;
  Role role = Role::local;
  std::string help;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool open_range = false;                             ///< the bounds themselves are refused
  std::vector<std::string> choices = {};               ///< of a string; empty: free text
  std::function<void(const std::string&)> check = {};  ///< of a string; throws ConfigError
  Source source = Source::default_value;
};

/// The options of one command. All errors are ConfigError in the grammar `problem (reason);
/// suggestion`.
class OptionTable {
 public:
  explicit OptionTable(std::string command) : command_(std::move(command)) {}
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  void add(Option option);
  const std::vector<Option>& options() const { return options_; }
  /// Throws ConfigError with the nearest name when there is none of that name.
  const Option& at(const std::string& name, const std::string& place = {}) const;
  bool given(const std::string& name) const { return at(name).source > Source::checkpoint; }

  /// Takes a value as text. `place` says where it stands, for the message.
  void set_text(const std::string& name, const std::vector<std::string>& values, Source source,
                const std::string& place);
  /// Takes the keys of a TOML file.
  void load_file(const std::string& path);
  /// Takes TUTTI_<NAME> of each option from `lookup` (getenv, or a test's).
  void load_environment(const std::function<const char*(const std::string&)>& lookup);

  /// The values of the options for which `take` holds.
  nlohmann::json json(const std::function<bool(const Option&)>& take) const;
  /// Takes the `run` and `fixed` values of a checkpoint where none was given; throws ConfigError
  /// where a given one contradicts a fixed one.
  void resume_from(const std::string& json_text, const std::string& checkpoint);

  /// Another checkpoint's values may be taken. The caller puts the variables back to what they were
  /// before.
  void forget_checkpoint();

  std::string environment_name(const std::string& option) const;

 private:
  Option& find(const std::string& name, const std::string& place);
  std::string command_;
  std::vector<Option> options_;
};

/// The name out of `names` that `word` was most likely meant to be; empty if none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

/// Throws ConfigError: `command` has none of that name; `names` are the ones it has, and `place`,
/// unless empty, says where it was given.
[[noreturn]] void refuse_unknown_option(const std::string& name, const std::string& place,
                                        const std::string& command,
                                        const std::vector<std::string>& names);

}  // namespace tutti::apps
