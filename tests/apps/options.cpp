// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Options of `tutti train`: precedence, refusals with their messages, and what a resumed run takes
// from its checkpoint.
#include "options.hpp"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "train_config.hpp"
#include "tutti/error.hpp"

using namespace tutti;
using namespace tutti::apps;

namespace {

/// A table of `tutti train` with its values, and a file that is removed with it.
struct Fixture {
  TrainConfig config;
  OptionTable table{"train"};
  std::string path = "options-test-" + std::to_string(getpid()) + ".toml";
  Fixture() { declare(table, config); }
  ~Fixture() { std::remove(path.c_str()); }
  void file(const std::string& text)
  {
    std::ofstream(path) << text;
    table.load_file(path);
  }
  void flag(const std::string& name, const std::string& value)
  {
    table.set_text(name, {value}, Source::flag, "--" + name);
  }
};

/// The message of the ConfigError that `work` must throw.
template <class Work>
std::string refusal(Work&& work)
{
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  FAIL("nothing was refused");
  return {};
}

bool holds(const std::string& text, const std::string& part)
{
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("A flag wins over the environment, that over the file, that over the default",
          "[options]")
{
  Fixture f;
  REQUIRE(f.config.batch == 256);
  f.file("batch = 10\nhidden = 20\nlr = 1\nseed = 3\n");
  f.table.load_environment([](const std::string& name) -> const char* {
    if (name == "TUTTI_HIDDEN") return "21";
    if (name == "TUTTI_MICRO_BATCHES") return "4";
    if (name == "TUTTI_LR") return "0.5";
    return nullptr;
  });
  f.flag("lr", "0.25");
  CHECK(f.config.seed == 3);
  CHECK(f.config.batch == 10);
  CHECK(f.config.hidden == 21);
  CHECK(f.config.micro_batches == 4);
  CHECK(f.config.lr == 0.25);
  CHECK(f.config.steps == TrainConfig{}.steps);
  CHECK(f.table.given("batch"));
  CHECK_FALSE(f.table.given("steps"));
}

TEST_CASE("Every option can be set from the file, the environment and a flag alike", "[options]")
{
  const Fixture fixture;
  for (const Option& declared : fixture.table.options()) {
    CAPTURE(declared.name);
    std::string text = "text", toml = "\"text\"";
    if (std::holds_alternative<std::uint64_t*>(declared.target)) text = toml = "7";
    if (std::holds_alternative<double*>(declared.target))
      text = toml = declared.maximum < 2 ? "0.25" : "7.25";
    if (!declared.choices.empty()) {
      text = declared.choices.back();
      if (**std::get_if<std::string*>(&declared.target) == text) text = declared.choices.front();
      toml = "\"" + text + "\"";
    }
    if (declared.name == "rank-weights") text = "1,2", toml = "\"1,2\"";
    if (declared.name == "fault") text = "loss:step=1,rank=0", toml = "[\"loss:step=1,rank=0\"]";
    const auto all = [](const Option&) { return true; };

    Fixture by_flag, by_environment, by_file;
    by_flag.flag(declared.name, text);
    const std::string wanted = by_environment.table.environment_name(declared.name);
    by_environment.table.load_environment(
        [&](const std::string& name) { return name == wanted ? text.c_str() : nullptr; });
    by_file.file(declared.name + " = " + toml + "\n");
    CHECK(by_flag.table.given(declared.name));
    CHECK(by_environment.table.given(declared.name));
    CHECK(by_file.table.given(declared.name));
    CHECK(by_flag.table.json(all) == by_environment.table.json(all));
    CHECK(by_flag.table.json(all) == by_file.table.json(all));
    CHECK(by_flag.table.json(all) != Fixture().table.json(all));
  }
}

TEST_CASE("An unknown key names the file, the line and the nearest option", "[options]")
{
  Fixture f;
  const std::string text = refusal([&] { f.file("batch = 8\nmicro_batch = 2\n"); });
  CHECK(holds(text, f.path + ":2"));
  CHECK(holds(text, "unknown option 'micro_batch'"));
  CHECK(holds(text, "did you mean 'micro-batches'?"));
  CHECK(holds(refusal([&] { f.flag("precison", "fp16"); }), "did you mean 'precision'?"));
  CHECK(holds(refusal([&] { f.flag("qqqqqqqqqq", "1"); }), "see tutti train --help"));
}

TEST_CASE("A value of the wrong type or out of range is refused with what was expected",
          "[options]")
{
  Fixture f;
  CHECK(holds(refusal([&] { f.file("batch = \"many\"\n"); }), "integer expected, string found"));
  CHECK(holds(refusal([&] { f.file("lr = true\n"); }), "number expected"));
  CHECK(holds(refusal([&] { f.file("precision = 16\n"); }), "string expected"));
  CHECK(holds(refusal([&] { f.file("fault = \"x\"\n"); }), "array of strings expected"));
  CHECK(holds(refusal([&] { f.file("batch = \n"); }), "is not TOML"));
  CHECK(holds(refusal([&] { f.file("batch = -4\n"); }), "a whole number from 1"));
  CHECK(holds(refusal([&] { f.flag("lr", "-1"); }), "a number from 0 up"));
  for (const char* bad : {"", "1e", "0x10", "nan", "inf", "1 ", "--"})
    CHECK(holds(refusal([&] { f.flag("lr", bad); }), "lr = '"));
  for (const char* bad : {"", "1.5", "-1", "1e3", "18446744073709551616"})
    CHECK(holds(refusal([&] { f.flag("steps", bad); }), "steps = '"));
  CHECK(holds(refusal([&] { f.flag("precision", "fp8"); }), "one of fp16, bf16, fp32"));
  CHECK(holds(refusal([&] { f.flag("backoff", "1"); }), "above 0 and below 1"));
  CHECK(holds(refusal([&] { f.flag("fault", "nonsense:step=1"); }), "nonsense"));
  CHECK(holds(refusal([&] { f.table.load_file("no/such/file.toml"); }), "cannot be read"));
  // Nothing of what was refused has been taken.
  CHECK(f.table.json([](const Option&) { return true; }) ==
        Fixture().table.json([](const Option&) { return true; }));
}

TEST_CASE("Rank weights must be one a rank and leave no data-parallel axis without an owner",
          "[options]")
{
  CHECK(parse_rank_weights("auto", 4, 2).empty());
  CHECK(parse_rank_weights("equal", 4, 2).empty());
  CHECK(parse_rank_weights("0,0,1,2.5", 4, 2) == std::vector<double>{0, 0, 1, 2.5});
  CHECK(holds(refusal([] { parse_rank_weights("0,1,0,1", 4, 2); }), "without an owner"));
  CHECK(holds(refusal([] { parse_rank_weights("1,1", 4, 2); }), "4 ranks"));
  for (const char* bad : {"1,", ",1", "1,-1", "1,nan", "a", "1;2", ""})
    CHECK(holds(refusal([&] { parse_rank_weights(bad, 0, 1); }), "rank-weights"));
}

TEST_CASE("What options cannot be together is refused", "[options]")
{
  const auto set = [](Fixture& f,
                      std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) f.flag(name, value);
  };
  const auto message = [&](int ranks,
                           std::initializer_list<std::pair<const char*, const char*>> values) {
    Fixture f;
    set(f, values);
    return refusal([&] { check(f.config, f.table, ranks); });
  };
  CHECK(holds(message(3, {{"model-parallel", "2"}}), "does not divide the number of ranks (3)"));
  CHECK(holds(message(4, {{"model-parallel", "4"}, {"hidden", "3"}}), "hidden = 3"));
  CHECK(holds(message(1, {{"schedule", "cosine"}}), "no horizon"));
  CHECK(holds(message(1, {{"schedule", "linear"}, {"schedule-steps", "5"}, {"warmup", "5"}}),
              "warmup"));
  CHECK(holds(message(1, {{"init-scale", "4"}, {"min-scale", "8"}}), "below min-scale"));
  CHECK(holds(message(1, {{"checkpoint-every", "4"}}), "--checkpoint-dir"));
  CHECK(holds(message(1, {{"resume", "latest"}}), "--checkpoint-dir"));
  CHECK(holds(message(1, {{"init-from", "a"}, {"resume", "b"}}), "both given"));
  CHECK(holds(message(1, {{"init-only", "a"}}), "--init-from is missing"));
  CHECK(holds(message(2, {{"fault", "loss:step=1,rank=2"}}), "rank 2 of 2"));
  Fixture f;
  check(f.config, f.table, 4);
}

TEST_CASE("A resumed run takes what defines it from the checkpoint unless it is given", "[options]")
{
  Fixture saved;
  for (auto [name, value] : {std::pair{"hidden", "32"},
                             {"batch", "10"},
                             {"lr", "0.5"},
                             {"steps", "7"},
                             {"data", "/somewhere"},
                             {"model-parallel", "2"}})
    saved.flag(name, value);
  const std::string text = configuration_text(saved.table);

  Fixture resumed;
  resumed.flag("lr", "0.25");
  resumed.table.resume_from(text, "step-1.h5");
  CHECK(resumed.config.hidden == 32);
  CHECK(resumed.config.batch == 10);
  CHECK(resumed.config.lr == 0.25);
  CHECK(resumed.config.steps == 7);
  CHECK(resumed.config.data == TrainConfig{}.data);
  CHECK(resumed.config.model_parallel == 1);
  CHECK_FALSE(resumed.table.given("hidden"));

  // Another checkpoint after all: what is not in it has its default, not the other one's value.
  Fixture again;
  const TrainConfig before = again.config;
  again.table.resume_from(text, "step-1.h5");
  again.config = before;
  again.table.forget_checkpoint();
  CHECK_FALSE(again.table.given("lr"));
  again.table.resume_from(R"({"hidden": 48})", "step-0.h5");
  CHECK(again.config.hidden == 48);
  CHECK(again.config.lr == TrainConfig().lr);

  Fixture same;
  same.flag("hidden", "32");
  same.table.resume_from(text, "step-1.h5");
  Fixture other;
  other.flag("hidden", "33");
  CHECK(holds(refusal([&] { other.table.resume_from(text, "step-1.h5"); }),
              "contradicts the checkpoint"));
  CHECK(
      holds(refusal([&] { Fixture().table.resume_from("[]", "step-1.h5"); }), "no configuration"));
  // What could not have been given is not taken from a file either.
  for (const char* value :
       {R"("hidden": "x")", R"("hidden": 0)", R"("batch": -1)", R"("steps": 2.5)", R"("lr": -0.5)",
        R"("lr": null)", R"("precision": "tf32")", R"("seed": [1])"})
    CHECK(holds(
        refusal([&] { Fixture().table.resume_from("{" + std::string(value) + "}", "step-1.h5"); }),
        "another kind"));
}

TEST_CASE("The agreed hash moves with what defines the run and with nothing else", "[options]")
{
  const std::uint64_t plain = configuration_hash(Fixture().table);
  const auto with = [](const char* name, const char* value) {
    Fixture f;
    f.flag(name, value);
    return configuration_hash(f.table);
  };
  CHECK(with("lr", "0.5") != plain);
  CHECK(with("seed", "9") != plain);
  CHECK(with("samples", "drop") != plain);
  for (auto [name, value] : {std::pair{"data", "/x"},
                             {"device", "host"},
                             {"log", "x"},
                             {"steps", "5"},
                             {"checkpoint-dir", "x"},
                             {"progress-every", "5"}})
    CHECK(with(name, value) == plain);
}

TEST_CASE("Patterns are parted by commas", "[options]")
{
  TrainConfig config;
  CHECK(init_patterns(config).empty());
  config.init_only = "a*,b/c,,d";
  CHECK(init_patterns(config) == std::vector<std::string>{"a*", "b/c", "d"});
}

TEST_CASE("The nearest name is near or there is none", "[options]")
{
  CHECK(nearest("stpes", {"steps", "batch"}) == "steps");
  CHECK(nearest("zzzzzz", {"steps", "batch"}).empty());
}
