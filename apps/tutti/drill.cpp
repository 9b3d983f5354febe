// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Starting the jobs of the catalogue one after the other, and holding what they leave against what
// it says. All that is looked at is what a user sees: exit code, messages, log, incident, summary.
#include "drill.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "drill_catalogue.hpp"
#include "idx_images.hpp"
#include "mlp.hpp"
#include "options.hpp"
#include "run_log.hpp"
#include "scratch_folder.hpp"
#include "tutti/error.hpp"

extern char** environ;

namespace tutti::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::duration;
using std::chrono::steady_clock;

volatile std::sig_atomic_t interrupted = 0;
extern "C" void note_interrupt(int number) { interrupted = number; }

std::string text_of(const fs::path& path)
{
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// What a job left behind.
struct Result {
  int exit_code = 0;
  bool late = false;
  std::string said;                     ///< on standard error
  std::vector<std::vector<json>> logs;  ///< of each rank
  json summary;                         ///< null: none was written
  fs::path folder;
};

/// Starts jobs of this same executable, each in a folder of its own.
class Jobs {
 public:
  explicit Jobs(const DrillRequest& request)
      : request_(request), self_(fs::read_symlink("/proc/self/exe"))
  {
    std::istringstream words(request.launcher);
    for (std::string word; words >> word;) launcher_.push_back(word);
    if (launcher_.empty())
      throw ConfigError("the launcher is empty (a job has several ranks); give --launcher");
    for (char** variable = environ; *variable != nullptr; ++variable)
      if (std::strncmp(*variable, "TUTTI_", 6) != 0) environment_.emplace_back(*variable);
    // So that Open MPI starts jobs as root and on fewer cores than ranks.
    for (const char* setting : {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                "OMPI_MCA_rmaps_base_oversubscribe=1",
                                "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                                "OMPI_MCA_mpi_yield_when_idle=1"}) {
      const std::string name = std::string(setting).substr(0, std::strchr(setting, '=') - setting);
      if (std::getenv(name.c_str()) == nullptr) environment_.emplace_back(setting);
    }
  }

  bool by_mpirun() const { return fs::path(launcher_.front()).filename() == "mpirun"; }

  Result run(int ranks, const std::vector<std::string>& flags, const fs::path& folder)
  {
    fs::create_directories(folder);
    std::vector<std::string> words;
    for (std::string word : launcher_) {
      if (const std::size_t at = word.find("{ranks}"); at != std::string::npos)
        word.replace(at, 7, fmt::format("{}", ranks));
      words.push_back(word);
    }
    for (const char* word :
         {self_.c_str(), "train", "--data", request_.data.c_str(), "--summary", "summary.json",
          "--log", "log-{rank}.jsonl", "--progress-every", "100", "--incident-dir", "incidents"})
      words.emplace_back(word);
    words.insert(words.end(), flags.begin(), flags.end());

    Result result;
    result.folder = folder;
    fs::remove(folder / "summary.json");
    wait(start(words, folder), result);
    result.said = text_of(folder / "err");
    for (int rank = 0; rank < ranks; ++rank) {
      std::ifstream log(folder / fmt::format("log-{}.jsonl", rank));
      std::vector<json>& lines = result.logs.emplace_back();
      for (std::string line; std::getline(log, line);)
        lines.push_back(json::parse(line, nullptr, false));
    }
    if (fs::exists(folder / "summary.json"))
      result.summary = json::parse(text_of(folder / "summary.json"), nullptr, false);
    return result;
  }

 private:
  /// In a process group of its own, so that all of it can be ended.
  pid_t start(std::vector<std::string>& words, const fs::path& folder)
  {
    std::vector<char*> arguments, variables;
    for (std::string& word : words) arguments.push_back(word.data());
    for (std::string& variable : environment_) variables.push_back(variable.data());
    arguments.push_back(nullptr);
    variables.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addchdir_np(&files, folder.c_str());
    constexpr int fresh = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "out", fresh, 0644);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "err", fresh, 0644);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    pid_t process = 0;
    const int error = posix_spawnp(&process, arguments[0], &files, &attributes, arguments.data(),
                                   variables.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (error != 0)
      throw ConfigError(fmt::format("the launcher '{}' cannot be started ({}); give --launcher",
                                    words.front(), std::strerror(error)));
    return process;
  }

  void wait(pid_t process, Result& result) const
  {
    const auto begin = steady_clock::now();
    int status = 0;
    bool told = false;
    while (::waitpid(process, &status, WNOHANG) == 0) {
      const double seconds = duration<double>(steady_clock::now() - begin).count();
      // A launcher that is asked to end takes its ranks along; one that does not is killed.
      if (!told && (seconds > request_.seconds || interrupted != 0)) {
        result.late = interrupted == 0;
        ::kill(-process, SIGTERM);
        told = true;
      }
      if (seconds > request_.seconds + 10) ::kill(-process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ::kill(-process, SIGKILL);  // whatever it left in its group
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (interrupted != 0)
      throw Refusal(static_cast<ExitCode>(128 + interrupted),
                    "the drill was interrupted (by a signal); start it again");
  }

  const DrillRequest& request_;
  fs::path self_;
  std::vector<std::string> launcher_, environment_;
};

/// Runs one drill and says what does not hold; nothing if all does.
class Check {
 public:
  Check(Jobs& jobs, std::map<std::vector<std::string>, json>& references, const fs::path& folder)
      : jobs_(jobs), references_(references), folder_(folder)
  {
  }

  std::vector<std::string> run(const Drill& drill)
  {
    std::vector<std::string> faults;
    for (const std::string& fault : drill.faults) {
      faults.emplace_back("--fault");
      faults.push_back(fault);
    }
    const auto started = [&](std::vector<std::string> more) {
      more.insert(more.begin(), drill.flags.begin(), drill.flags.end());
      return jobs_.run(drill.ranks, more, folder_ / drill.name);
    };
    const Result result = started(faults);
    if (result.late) return {"it hangs (no end within the limit of one job)"};
    const bool killed = drill.exit_code == 4 && !jobs_.by_mpirun() && result.exit_code > 128;
    expect(result.exit_code == drill.exit_code || killed,
           fmt::format("exit code {}, {} expected", result.exit_code, drill.exit_code));
    for (const std::string& text : drill.said)
      expect(result.said.find(text) != std::string::npos,
             fmt::format("'{}' is not said on standard error", text));
    if (drill.attempt != 0) check_attempt(drill, result);
    if (!drill.resumes && !drill.ends_as.empty() && wrong_.empty()) check_end(drill, result, "it");
    if (drill.resumes && wrong_.empty()) {
      const Result again = started({"--resume", "auto"});
      expect(again.exit_code == 0, fmt::format("the run after it ends with {}", again.exit_code));
      if (wrong_.empty()) check_end(drill, again, "the run after it");
    }
    return wrong_;
  }

 private:
  void expect(bool holds, const std::string& what)
  {
    if (!holds) wrong_.push_back(what);
  }

  void check_attempt(const Drill& drill, const Result& result)
  {
    const std::vector<json>& log = result.logs.front();
    for (std::size_t rank = 1; rank < result.logs.size(); ++rank)
      expect(result.logs[rank] == log, fmt::format("rank {} logged other outcomes than 0", rank));
    const auto line = std::find_if(log.begin(), log.end(), [&](const json& candidate) {
      return candidate.value("attempt", std::uint64_t{0}) == drill.attempt;
    });
    if (line == log.end()) {
      expect(false, fmt::format("there is no attempt {} in the log", drill.attempt));
      return;
    }
    expect(line->value("verdict", "") == drill.verdict && line->value("reason", "") == drill.reason,
           fmt::format("verdict {} ({}), {} ({}) expected", line->value("verdict", "none"),
                       line->value("reason", "none"), drill.verdict, drill.reason));
    const std::string file = line->value("incident", "");
    const json incident =
        file.empty() ? json() : json::parse(text_of(result.folder / file), nullptr, false);
    if (!incident.is_object()) {
      expect(false, "no incident was written");
      return;
    }
    for (const auto& [field, value] : drill.incident.items()) {
      const json found = field.front() == '/' ? incident.value(json::json_pointer(field), json())
                                              : incident.value(field, json());
      expect(found == value, fmt::format("the incident's {} is {}, {} expected", field,
                                         found.dump(), value.dump()));
    }
  }

  /// The same state as in a run that must end so, and every sample accounted for.
  void check_end(const Drill& drill, const Result& result, const char* which)
  {
    json& reference = references_[drill.ends_as];
    if (reference.is_null()) {
      const fs::path folder = folder_ / fmt::format("reference-{}", references_.size());
      reference = jobs_.run(drill.ranks, drill.ends_as, folder).summary;
    }
    for (const char* field : {"state_digest", "steps", "samples_committed", "samples_dropped"})
      expect(reference.is_object() && result.summary.is_object() &&
                 result.summary.value(field, json()) == reference.value(field, json()),
             fmt::format("{} does not end with the {} that it must", which, field));
  }

  Jobs& jobs_;
  std::map<std::vector<std::string>, json>& references_;
  const fs::path& folder_;
  std::vector<std::string> wrong_;
};

struct Judged {
  std::string name;
  double seconds;
  std::vector<std::string> wrong;
};

std::string escaped(const std::string& text)
{
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// "nonfinite/loss/fp16/rank0/drop" is test "loss/fp16/rank0/drop" of class "nonfinite".
std::string group_of(const std::string& name) { return name.substr(0, name.find('/')); }

std::string junit(const std::vector<Judged>& verdicts)
{
  double seconds = 0;
  std::size_t failures = 0;
  std::string cases;
  for (const Judged& v : verdicts) {
    seconds += v.seconds;
    failures += v.wrong.empty() ? 0 : 1;
    const std::string group = group_of(v.name);
    cases += fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"", group,
                         v.name.substr(group.size() + 1), v.seconds);
    cases += v.wrong.empty() ? "/>\n"
                             : fmt::format("><failure message=\"{}\"/></testcase>\n",
                                           escaped(fmt::format("{}", fmt::join(v.wrong, "; "))));
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuite name=\"tutti drill\" tests=\"{}\" failures=\"{}\" time=\"{:.3f}\">\n{}"
      "</testsuite>\n",
      verdicts.size(), failures, seconds, cases);
}

std::vector<Drill> chosen(const std::vector<std::string>& patterns, std::size_t inputs)
{
  const std::vector<Drill> all = drill_catalogue(inputs);
  if (patterns.empty()) return all;
  std::set<std::string> names;
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (const Drill& drill : all)
      // A folder of the catalogue means all that is in it.
      if (fnmatch(pattern.c_str(), drill.name.c_str(), 0) == 0 ||
          drill.name.rfind(pattern + "/", 0) == 0) {
        names.insert(drill.name);
        found = true;
      }
    if (found) continue;
    std::vector<std::string> known;
    for (const Drill& drill : all) known.push_back(drill.name);
    const std::string near = nearest(pattern, known);
    throw ConfigError(fmt::format(
        "there is no drill '{}' (the catalogue has {}); {}", pattern, all.size(),
        near.empty() ? "see tutti drill --list" : fmt::format("did you mean '{}'?", near)));
  }
  std::vector<Drill> out;
  for (const Drill& drill : all)
    if (names.count(drill.name) != 0) out.push_back(drill);
  return out;
}

void list(const std::vector<Drill>& drills)
{
  for (const Drill& drill : drills) fmt::print("{}\n", drill.name);
  fmt::print("\n{} drills. Left out, since they cannot be:\n", drills.size());
  for (const std::string& rule : drills_left_out()) fmt::print("  {}\n", rule);
}

/// Where the user wants the jobs' folders to stay.
fs::path kept_folder(const std::string& path)
{
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw IoError(fmt::format("folder {} cannot be made ({}); give another one with --keep", path,
                              error.message()));
  return fs::absolute(path);
}

}  // namespace

ExitCode drill(const DrillRequest& request)
{
  if (request.list) {
    list(chosen(request.names, MlpShape{}.inputs));
    return ExitCode::ok;
  }
  const std::vector<Drill> drills =
      chosen(request.names, read_image_data(request.data).train.pixels_per_image());
  require_writable(request.junit, "junit");
  std::optional<ScratchFolder> scratch;
  const fs::path folder =
      request.keep.empty() ? scratch.emplace("drill").path() : kept_folder(request.keep);
  Jobs jobs(request);
  struct sigaction action {};
  action.sa_handler = &note_interrupt;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);

  std::map<std::vector<std::string>, json> references;
  std::vector<Judged> verdicts;
  std::map<std::string, std::array<double, 3>> table;  // of a group: drills, failed, seconds
  for (const Drill& drill : drills) {
    const auto begin = steady_clock::now();
    Check check(jobs, references, folder);
    std::vector<std::string> wrong = check.run(drill);
    const double seconds = duration<double>(steady_clock::now() - begin).count();
    fmt::print("{:<4} {:<48} {:6.1f} s\n", wrong.empty() ? "ok" : "FAIL", drill.name, seconds);
    for (const std::string& what : wrong) fmt::print("       {}\n", what);
    std::fflush(stdout);
    std::array<double, 3>& row = table[group_of(drill.name)];
    row[0] += 1;
    row[1] += wrong.empty() ? 0 : 1;
    row[2] += seconds;
    verdicts.push_back({drill.name, seconds, std::move(wrong)});
  }
  std::size_t failed = 0;
  fmt::print("\n{:<12} {:>6} {:>6} {:>9}\n", "", "drills", "failed", "seconds");
  for (const auto& [group, row] : table) {
    fmt::print("{:<12} {:>6.0f} {:>6.0f} {:>9.1f}\n", group, row[0], row[1], row[2]);
    failed += static_cast<std::size_t>(row[1]);
  }
  if (!request.junit.empty()) write_text_file(request.junit, junit(verdicts));
  if (failed == 0)
    fmt::print("all {} drills came to what they must\n", drills.size());
  else
    fmt::print("{} of {} drills did not come to what they must{}\n", failed, drills.size(),
               request.keep.empty() ? "; see the jobs with --keep DIR" : "");
  return failed == 0 ? ExitCode::ok : ExitCode::error;
}

}  // namespace tutti::apps
