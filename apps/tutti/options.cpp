// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Parsing, checking and precedence of options. Which options there are is not said here.
#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "tutti/error.hpp"

namespace tutti::apps {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

std::string number_text(double value)
{
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

/// "a whole number from 1 up", for messages.
std::string expected(const Option& option)
{
  if (std::holds_alternative<std::string*>(option.target) ||
      std::holds_alternative<std::vector<std::string>*>(option.target))
    return option.choices.empty() ? "a text that is not empty"
                                  : fmt::format("one of {}", fmt::join(option.choices, ", "));
  std::string text =
      std::holds_alternative<std::uint64_t*>(option.target) ? "a whole number" : "a number";
  const bool low = std::isfinite(option.minimum), high = std::isfinite(option.maximum);
  if (low)
    text +=
        fmt::format(" {} {}", option.open_range ? "above" : "from", number_text(option.minimum));
  if (high)
    text +=
        fmt::format(" {} {}", option.open_range ? "and below" : "to", number_text(option.maximum));
  if (low && !high && !option.open_range) text += " up";
  return text;
}

[[noreturn]] void refuse(const std::string& command, const Option& option, const std::string& value,
                         const std::string& place, const std::string& near = {})
{
  throw ConfigError(fmt::format("{} = '{}' is refused ({}: {} expected); {}", option.name, value,
                                place, expected(option),
                                near.empty() ? fmt::format("see tutti {} --help", command)
                                             : fmt::format("did you mean '{}'?", near)));
}

template <class Number>
std::optional<Number> parse_number(const std::string& text)
{
  Number value{};
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc{} || stop != end || begin == end) return std::nullopt;
  return value;
}

bool in_range(const Option& option, double value)
{
  if (!std::isfinite(value)) return false;
  if (option.open_range) return value > option.minimum && value < option.maximum;
  return value >= option.minimum && value <= option.maximum;
}

bool is_choice(const Option& option, const std::string& text)
{
  return option.choices.empty() ||
         std::find(option.choices.begin(), option.choices.end(), text) != option.choices.end();
}

/// Values stand in JSON and in messages.
bool is_utf8(const std::string& text)
{
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

/// Whether a value out of a checkpoint is one that could have been given.
bool takes(const Option& option, const nlohmann::json& value)
{
  return std::visit(
      Overloaded{
          [&](std::uint64_t*) {
            return value.is_number_unsigned() && in_range(option, value.get<double>());
          },
          [&](double*) { return value.is_number() && in_range(option, value.get<double>()); },
          [&](std::string*) {
            return value.is_string() && is_choice(option, value.get_ref<const std::string&>());
          },
          [&](std::vector<std::string>*) {
            return value.is_array() && std::all_of(value.begin(), value.end(),
                                                   [](const auto& v) { return v.is_string(); });
          },
      },
      option.target);
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& names)
{
  std::string best;
  std::size_t best_distance = std::min<std::size_t>(4, word.size() / 2 + 2);
  for (const std::string& name : names) {
    // Levenshtein's distance by rows.
    std::vector<std::size_t> row(name.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < name.size(); ++j) {
        const auto same = [](char c) { return c == '_' ? '-' : c; };
        const std::size_t substitute = diagonal + (same(word[i]) == same(name[j]) ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({substitute, row[j] + 1, diagonal + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = name;
    }
  }
  return best;
}

void refuse_unknown_option(const std::string& name, const std::string& place,
                           const std::string& command, const std::vector<std::string>& names)
{
  const std::string near = nearest(name, names);
  throw ConfigError(fmt::format("unknown option '{}'{} (tutti {} has none of that name); {}", name,
                                place.empty() ? "" : " in " + place, command,
                                near.empty() ? fmt::format("see tutti {} --help", command)
                                             : fmt::format("did you mean '{}'?", near)));
}

void OptionTable::add(Option option) { options_.push_back(std::move(option)); }

Option& OptionTable::find(const std::string& name, const std::string& place)
{
  for (Option& option : options_)
    if (option.name == name) return option;
  std::vector<std::string> names;
  for (const Option& option : options_) names.push_back(option.name);
  refuse_unknown_option(name, place, command_, names);
}

const Option& OptionTable::at(const std::string& name, const std::string& place) const
{
  return const_cast<OptionTable*>(this)->find(name, place);
}

void OptionTable::set_text(const std::string& name, const std::vector<std::string>& values,
                           Source source, const std::string& place)
{
  Option& option = find(name, place);
  if (values.empty()) refuse(command_, option, "", place);
  const std::string& text = values.back();
  for (const std::string& value : values)
    if (!is_utf8(value))
      throw ConfigError(fmt::format(
          "{} is refused ({}: its value is not UTF-8); rename what it names", name, place));
  std::visit(Overloaded{
                 [&](std::uint64_t* target) {
                   const auto value = parse_number<std::uint64_t>(text);
                   if (!value || !in_range(option, static_cast<double>(*value)))
                     refuse(command_, option, text, place);
                   *target = *value;
                 },
                 [&](double* target) {
                   const auto value = parse_number<double>(text);
                   if (!value || !in_range(option, *value)) refuse(command_, option, text, place);
                   *target = *value;
                 },
                 [&](std::string* target) {
                   // An empty one is mostly a variable of a script that was not set.
                   if (text.empty()) refuse(command_, option, text, place);
                   if (!is_choice(option, text))
                     refuse(command_, option, text, place, nearest(text, option.choices));
                   if (option.check) option.check(text);
                   *target = text;
                 },
                 [&](std::vector<std::string>* target) {
                   if (option.check)
                     for (const std::string& value : values) option.check(value);
                   *target = values;
                 },
             },
             option.target);
  option.source = source;
}

void OptionTable::load_file(const std::string& path)
{
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf()))
    throw ConfigError(
        fmt::format("configuration {} cannot be read (no such file, or empty, or no permission); "
                    "give the path of a TOML file",
                    path));
  toml::table table;
  try {
    table = toml::parse(text.str());
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("configuration {}:{} is not TOML ({}); correct that line", path,
                                  error.source().begin.line, std::string(error.description())));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string place = fmt::format("{}:{}", path, node.source().begin.line);
    const Option& option = at(name, place);
    std::ostringstream found;
    found << node.type();
    const auto wrong_type = [&](const char* wanted) {
      throw ConfigError(fmt::format("{} has the wrong type ({}: {} expected, {} found); {}", name,
                                    place, wanted, found.str(),
                                    "see tutti " + command_ + " --help"));
    };
    std::vector<std::string> values;
    std::visit(Overloaded{
                   [&](std::uint64_t*) {
                     if (!node.is_integer()) wrong_type("integer");
                     values = {std::to_string(node.as_integer()->get())};
                   },
                   [&](double*) {
                     if (node.is_integer())
                       values = {std::to_string(node.as_integer()->get())};
                     else if (node.is_floating_point())
                       values = {fmt::format("{}", node.as_floating_point()->get())};
                     else
                       wrong_type("number");
                   },
                   [&](std::string*) {
                     if (!node.is_string()) wrong_type("string");
                     values = {node.as_string()->get()};
                   },
                   [&](std::vector<std::string>*) {
                     if (!node.is_array()) wrong_type("array of strings");
                     for (const toml::node& element : *node.as_array()) {
                       if (!element.is_string()) wrong_type("array of strings");
                       values.push_back(element.as_string()->get());
                     }
                   },
               },
               option.target);
    if (!values.empty()) set_text(name, values, Source::file, place);
  }
}

std::string OptionTable::environment_name(const std::string& option) const
{
  std::string name = "TUTTI_";
  for (char c : option)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

void OptionTable::load_environment(const std::function<const char*(const std::string&)>& lookup)
{
  for (const Option& option : options_) {
    const std::string variable = environment_name(option.name);
    const char* value = lookup(variable);
    if (value == nullptr) continue;
    std::vector<std::string> values{value};
    if (std::holds_alternative<std::vector<std::string>*>(option.target)) {
      values.clear();  // several are separated by blanks
      std::istringstream words(value);
      for (std::string word; words >> word;) values.push_back(word);
      if (values.empty()) continue;
    }
    set_text(option.name, values, Source::environment, variable + " in the environment");
  }
}

nlohmann::json OptionTable::json(const std::function<bool(const Option&)>& take) const
{
  nlohmann::json object = nlohmann::json::object();
  for (const Option& option : options_)
    if (take(option))
      std::visit([&](auto* target) { object[option.name] = *target; }, option.target);
  return object;
}

void OptionTable::resume_from(const std::string& json_text, const std::string& checkpoint)
{
  const nlohmann::json object = nlohmann::json::parse(json_text, nullptr, false);
  if (!object.is_object())
    throw ConfigError(fmt::format(
        "checkpoint {} holds no configuration of tutti train (its configuration is not a "
        "JSON object); give another checkpoint",
        checkpoint));
  for (Option& option : options_) {
    if (option.role != Role::run && option.role != Role::fixed) continue;
    const auto entry = object.find(option.name);
    if (entry == object.end()) continue;
    const bool was_given = option.source > Source::checkpoint;
    if (!takes(option, *entry))
      throw ConfigError(
          fmt::format("checkpoint {} holds a configuration of another kind ({} = {}, {} expected); "
                      "give another checkpoint",
                      checkpoint, option.name, entry->dump(), expected(option)));
    std::visit(
        [&](auto* target) {
          const auto value = entry->get<std::remove_reference_t<decltype(*target)>>();
          if (was_given && option.role == Role::fixed && value != *target)
            throw ConfigError(
                fmt::format("{} = {} contradicts the checkpoint ({} was made with {}); leave "
                            "--{} out, or start a new run",
                            option.name, nlohmann::json(*target).dump(), checkpoint, entry->dump(),
                            option.name));
          if (!was_given) {
            *target = value;
            option.source = Source::checkpoint;
          }
        },
        option.target);
  }
}

void OptionTable::forget_checkpoint()
{
  for (Option& option : options_)
    if (option.source == Source::checkpoint) option.source = Source::default_value;
}

}  // namespace tutti::apps
