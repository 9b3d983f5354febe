// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The command `tutti`: takes the command line apart, and makes one end of whatever happens, on all
// ranks. MPI is started only for what needs it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "agreement.hpp"
#include "bench_checkpoint.hpp"
#include "bench_step.hpp"
#include "checkpoint_command.hpp"
#include "drill.hpp"
#include "incident_command.hpp"
#include "info.hpp"
#include "launcher.hpp"
#include "replay.hpp"
#include "train.hpp"
#include "tutti/error.hpp"
#include "tutti/tutti.hpp"

namespace {

using namespace tutti;
using namespace tutti::apps;

using Flags = std::map<std::string, std::vector<std::string>>;

/// One flag for each option of the table; what is not known comes back as an extra.
void add_flags(CLI::App& command, const OptionTable& table, Flags& flags)
{
  for (const Option& option : table.options()) {
    const bool repeatable = std::holds_alternative<std::vector<std::string>*>(option.target);
    CLI::Option* flag = command.add_option("--" + option.name, flags[option.name], option.help)
                            ->type_name(option.argument)
                            ->expected(1)
                            ->allow_extra_args(false);
    if (repeatable)
      flag->take_all();
    else
      flag->take_last();
    std::string initial;
    if (const auto* number = std::get_if<std::uint64_t*>(&option.target))
      initial = fmt::format("{}", **number);
    if (const auto* number = std::get_if<double*>(&option.target))
      initial = fmt::format("{:.10g}", **number);
    if (const auto* text = std::get_if<std::string*>(&option.target)) initial = **text;
    flag->default_str(initial);
  }
  command.allow_extras();
}

/// The innermost command that was typed.
const CLI::App& typed_command(const CLI::App& app)
{
  const std::vector<CLI::App*> typed = app.get_subcommands();
  return typed.empty() ? app : typed_command(*typed.front());
}

/// "bench step"
std::string full_name(const CLI::App& command)
{
  const CLI::App* const parent = command.get_parent();
  return parent == nullptr || parent->get_parent() == nullptr
             ? command.get_name()
             : full_name(*parent) + " " + command.get_name();
}

/// What no command took.
std::vector<std::string> extras_of(const CLI::App& app)
{
  std::vector<std::string> extras = app.remaining(true);
  std::erase(extras, "--");
  return extras;
}

void refuse_extras(const CLI::App& app)
{
  const std::vector<std::string> extras = extras_of(app);
  if (extras.empty()) return;
  const std::string& extra = extras.front();
  const CLI::App& command = typed_command(app);
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  const std::string name = extra.rfind("--", 0) == 0 ? extra.substr(2, extra.find('=') - 2) : "";
  const bool known = std::find(names.begin(), names.end(), name) != names.end();
  if (!name.empty() && !known)
    refuse_unknown_option(name, "the command line", full_name(command), names);
  throw ConfigError(fmt::format(
      "unexpected argument '{}' ({}); see tutti {} --help", extra,
      known ? "options stand after their command, none after --" : "options begin with --",
      full_name(command)));
}

const char* environment(const std::string& name) { return std::getenv(name.c_str()); }

/// File, environment, flags: in rising precedence.
void load(OptionTable& table, const std::string* config_path, const Flags& flags)
{
  if (config_path != nullptr) {
    // Where the file is may itself come from a flag or the environment.
    std::string path;
    if (const char* value = environment(table.environment_name("config"))) path = value;
    if (const auto flag = flags.find("config"); flag != flags.end() && !flag->second.empty())
      path = flag->second.back();
    if (!path.empty()) table.load_file(path);
    table.load_environment(environment);
  }
  for (const auto& [name, values] : flags)
    if (!values.empty()) table.set_text(name, values, Source::flag, "--" + name);
}

void speak(const std::string& message) { std::fprintf(stderr, "tutti: %s\n", message.c_str()); }

/// CLI11's own checks let nan through, and take -1 for the greatest of unsigned numbers.
std::string positive_number(const std::string& text)
{
  double value = 0;
  const bool good = CLI::detail::lexical_cast(text, value) && value > 0 && std::isfinite(value);
  return good ? "" : fmt::format("'{}' is no number above 0", text);
}

std::string whole_number(const std::string& text)
{
  const bool good = text.find_first_not_of("0123456789") == std::string::npos;
  return good ? "" : fmt::format("'{}' is no whole number from 0 up", text);
}

/// `tutti checkpoint` and its actions, which fill `request`.
CLI::App* add_checkpoint(CLI::App& app, CheckpointRequest& request)
{
  CLI::App* command = app.add_subcommand("checkpoint", "look into checkpoints");
  command->require_subcommand(0, 1);
  command->allow_extras();
  const auto action = [&](const char* name, const char* help, const char* argument, int least,
                          int most) {
    CLI::App* added = command->add_subcommand(name, help);
    added->add_option(argument, request.paths)->required()->expected(least, most);
    added->parse_complete_callback([&request, name] { request.action = name; });
    return added;
  };
  constexpr int any = 1 << 20;
  action("ls", "the checkpoints of a folder, the newest first", "DIR", 1, 1)
      ->add_flag("--json", request.json, "as JSON");
  action("verify", "compare every block with its hash; shared among the ranks of mpirun", "FILE", 1,
         any);
  action("diff", "where two checkpoints differ", "FILE", 2, 2);
  action("show", "parameters, control state and ledger", "FILE", 1, 1)
      ->add_flag("--json", request.json, "as JSON");
  CLI::App* reshard = command->add_subcommand("reshard", "not needed: a restore takes any layout");
  reshard->allow_extras();
  reshard->parse_complete_callback([&request] { request.action = "reshard"; });
  return command;
}

/// `tutti incident` and its actions, which fill `request`.
CLI::App* add_incident(CLI::App& app, IncidentRequest& request, ReplayRequest& again)
{
  CLI::App* command = app.add_subcommand("incident", "look at attempts that were not committed");
  command->require_subcommand(0, 1);
  command->allow_extras();
  const auto action = [&](const char* name, const char* help, const char* argument) {
    CLI::App* added = command->add_subcommand(name, help);
    added->add_option(argument, request.path)->required();
    added->parse_complete_callback([&request, name] { request.action = name; });
    return added;
  };
  action("ls", "the incidents of a folder, the oldest first", "DIR");
  action("show", "one incident; of a folder the newest", "FILE")
      ->add_flag("--json", request.json, "as JSON");
  CLI::App* replay = command->add_subcommand("replay", "make one again on one rank, and find why");
  replay->add_option("FILE", again.file)->required();
  replay->add_option("--checkpoint", again.checkpoint, "in place of the incident's own")
      ->type_name("FILE");
  replay->add_option("--data", again.data, "in place of the run's images")->type_name("DIR");
  replay
      ->add_option("--most-steps", again.steps,
                   "of the run that may be made again to come from checkpoint to incident")
      ->type_name("N")
      ->check(whole_number)
      ->capture_default_str();
  replay->add_flag("--json", again.json, "as JSON");
  replay->parse_complete_callback([&request] { request.action = "replay"; });
  return command;
}

CLI::App* add_drill(CLI::App& app, DrillRequest& request)
{
  CLI::App* command =
      app.add_subcommand("drill", "run planned faults as real jobs, and check what comes of them");
  command->add_option("name", request.names, "drills, folders of them, or patterns; all if none");
  command->add_flag("--list", request.list, "say their names, and run none");
  command->add_option("--junit", request.junit, "the result as JUnit XML")->type_name("FILE.xml");
  command
      ->add_option("--launcher", request.launcher,
                   "what starts ranks; {ranks} stands for their number")
      ->type_name("COMMAND")
      ->capture_default_str();
  command->add_option("--data", request.data, "folder of Fashion-MNIST, or of files like it")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_option("--keep", request.keep, "leave here what the jobs say and write")
      ->type_name("DIR");
  command->add_option("--seconds", request.seconds, "limit of one job")
      ->type_name("S")
      ->check(positive_number)
      ->capture_default_str();
  return command;
}

/// What was typed is none of `names`.
[[noreturn]] void refuse_word(const std::vector<std::string>& words, const std::string& parent,
                              const std::vector<std::string>& names)
{
  const std::string word = words.empty() ? "" : words.front();
  const std::string near = nearest(word, names);
  throw ConfigError(
      fmt::format("{} ({} has {}); {}",
                  word.empty() ? "no command is given" : fmt::format("unknown command '{}'", word),
                  parent, fmt::join(names, ", "),
                  near.empty() || word.empty() ? fmt::format("see {} --help", parent)
                                               : fmt::format("did you mean '{}'?", near)));
}

/// Runs a command that needs no MPI and was started without a launcher.
int run_alone(const std::function<ExitCode()>& command)
{
  try {
    return static_cast<int>(command());
  } catch (const std::exception& error) {
    speak(error.what());
    return static_cast<int>(exit_code_of(error));
  }
}

/// Runs a command that needs MPI. `problem`: a usage error that is already known here. Every end is
/// agreed on, so that a rank that cannot even read its options ends all.
int run_on_all_ranks(const std::optional<std::string>& problem,
                     const std::function<ExitCode()>& command)
{
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of one write, not the end
  // The arguments are ours: Kokkos would take --device for its own.
  std::string name = "tutti";
  char* arguments[] = {name.data(), nullptr};
  int count = 1;
  char** values = arguments;
  Environment started(count, values);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    collectively(MPI_COMM_WORLD, [&] {
      if (problem) throw ConfigError(*problem);
    });
    return static_cast<int>(command());
  } catch (const Refusal& refusal) {
    if (rank == 0) speak(refusal.what());
    return static_cast<int>(refusal.code);
  } catch (const std::exception& error) {
    // Not agreed on: the others may be in any collective.
    speak(fmt::format("[rank {}] {}", rank, error.what()));
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::error));
  }
  return static_cast<int>(ExitCode::error);
}

}  // namespace

int main(int argc, char** argv)
{
  CLI::App app("tutti: one logical update, one outcome on all ranks", "tutti");
  app.set_version_flag("--version", "tutti " + version());
  app.require_subcommand(0, 1);
  app.allow_extras();

  TrainConfig train_config;
  OptionTable train_table("train");
  declare(train_table, train_config);
  BenchConfig bench_config;
  OptionTable bench_table("bench step");
  declare(bench_table, bench_config);
  CheckpointBenchConfig checkpoint_config;
  OptionTable checkpoint_table("bench checkpoint");
  declare(checkpoint_table, checkpoint_config);
  Flags train_flags, bench_flags, checkpoint_flags;
  CLI::App* train_command =
      app.add_subcommand("train", "train the reference classifier on Fashion-MNIST");
  add_flags(*train_command, train_table, train_flags);
  train_command->footer(
      "Each option may also stand in the --config file under its name, or in the environment as\n"
      "TUTTI_<NAME>; flag > environment > file > default.");
  CLI::App* info_command = app.add_subcommand("info", "versions, devices and instruction sets");
  CLI::App* bench_command = app.add_subcommand("bench", "measure");
  bench_command->require_subcommand(0, 1);
  bench_command->allow_extras();
  CLI::App* step_command =
      bench_command->add_subcommand("step", "the cost of a whole step boundary");
  add_flags(*step_command, bench_table, bench_flags);
  CLI::App* bench_checkpoint_command =
      bench_command->add_subcommand("checkpoint", "the cost of a save and of a verified restore");
  add_flags(*bench_checkpoint_command, checkpoint_table, checkpoint_flags);

  CheckpointRequest request;
  CLI::App* look_command = add_checkpoint(app, request);

  IncidentRequest incident_request;
  ReplayRequest replay_request;
  CLI::App* incident_command = add_incident(app, incident_request, replay_request);

  DrillRequest drill_request;
  CLI::App* drill_command = add_drill(app, drill_request);

  const bool speaks = launched_rank().value_or(0) == 0;
  std::optional<std::string> problem;
  std::string versions;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {  // --help, --version
    if (speaks) app.exit(answer);
    return 0;
  } catch (const CLI::ParseError& error) {
    problem = fmt::format("the command line cannot be read ({}); see tutti --help", error.what());
  }
  try {
    if (!problem) {
      // A word where a command was expected is judged first.
      if (app.get_subcommands().empty())
        refuse_word(extras_of(app), "tutti",
                    {"train", "info", "bench", "checkpoint", "incident", "drill"});
      if (bench_command->parsed() && bench_command->get_subcommands().empty())
        refuse_word(extras_of(app), "tutti bench", {"step", "checkpoint"});
      if (look_command->parsed() && request.action.empty())
        refuse_word(extras_of(app), "tutti checkpoint", {"ls", "verify", "diff", "show"});
      if (incident_command->parsed() && incident_request.action.empty())
        refuse_word(extras_of(app), "tutti incident", {"ls", "show", "replay"});
      if (request.action == "reshard")
        throw ConfigError(
            "checkpoint reshard is not needed (a restore takes any number of ranks and any "
            "model-parallel degree); start the job as you want it, with --resume");
      refuse_extras(app);
      if (train_command->parsed()) load(train_table, &train_config.config, train_flags);
      if (step_command->parsed()) load(bench_table, nullptr, bench_flags);
      if (bench_checkpoint_command->parsed()) load(checkpoint_table, nullptr, checkpoint_flags);
      if (info_command->parsed()) versions = info();
      if (drill_command->parsed() && launched_rank())
        throw ConfigError(
            "drill starts jobs of its own (it was started by a launcher); run it without one, "
            "and give yours with --launcher");
    }
  } catch (const ConfigError& error) {
    problem = error.what();
  }

  if (info_command->parsed() && !problem) {
    if (speaks) std::fputs(versions.c_str(), stdout);
    return 0;
  }
  if (problem && !launched_rank()) {
    speak(*problem);
    return static_cast<int>(ExitCode::usage);
  }
  if (drill_command->parsed() && !problem) return run_alone([&] { return drill(drill_request); });
  if (look_command->parsed() && !launched_rank())
    return run_alone([&] { return checkpoint_command(request, MPI_COMM_NULL); });
  const bool replays = incident_request.action == "replay";
  if (incident_command->parsed() && !problem && !replays) {
    if (!speaks) return 0;
    return run_alone([&] {
      std::fputs(incident_text(incident_request).c_str(), stdout);
      return ExitCode::ok;
    });
  }
  return run_on_all_ranks(problem, [&] {
    if (look_command->parsed()) return checkpoint_command(request, MPI_COMM_WORLD);
    if (replays) return replay(replay_request);
    if (train_command->parsed()) return train(train_table, train_config);
    return step_command->parsed() ? bench_step(bench_config) : bench_checkpoint(checkpoint_config);
  });
}
