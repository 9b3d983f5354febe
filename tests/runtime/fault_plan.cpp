// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a fault's text means, and that a wrong one is refused with its reason.
#include "tutti/fault_plan.hpp"

#include <cmath>

#include "catch.hpp"
#include "tutti/error.hpp"

using namespace tutti;

TEST_CASE("a fault with step fires on every attempt at that step, one with attempt once")
{
  const FaultPlan plan({parse_fault("nonfinite:step=3,rank=1,value=inf"),
                        parse_fault("nonfinite:attempt=3,rank=1,value=-inf")});
  REQUIRE(plan.firing(FaultKind::nonfinite, 1, 3, 4).size() == 1);
  REQUIRE(plan.firing(FaultKind::nonfinite, 1, 3, 5).size() == 1);
  REQUIRE(plan.firing(FaultKind::nonfinite, 1, 2, 3).size() == 1);
  REQUIRE(plan.firing(FaultKind::nonfinite, 1, 2, 4).empty());
  REQUIRE(plan.firing(FaultKind::nonfinite, 0, 3, 4).empty());
  REQUIRE(plan.firing(FaultKind::loss, 1, 3, 4).empty());
}

TEST_CASE("every key of every kind is read")
{
  const Fault f = parse_fault(
      "nonfinite:step=2,rank=3,micro=1,param=fc1.weight,element=77,value=-inf,optimizer=1");
  REQUIRE(f.kind == FaultKind::nonfinite);
  REQUIRE(f.step == 2u);
  REQUIRE(f.rank == 3);
  REQUIRE(f.micro == 1);
  REQUIRE(f.parameter == "fc1.weight");
  REQUIRE(f.element == 77);
  REQUIRE(f.optimizer == 1u);
  REQUIRE((std::isinf(f.value) && f.value < 0));
  REQUIRE(std::isnan(parse_fault("loss:step=0,rank=0,value=nan").value));
  REQUIRE(parse_fault("nonfinite:step=0,rank=0,value=-3e38").value == -3e38f);
  const Fault state = parse_fault("state:attempt=2,rank=1,param=w,element=9,value=inf");
  REQUIRE(state.kind == FaultKind::state);
  REQUIRE((state.parameter == "w" && state.element == 9 && std::isinf(state.value)));
  REQUIRE(parse_fault("scale:step=0,rank=0,factor=0.5").factor == 0.5);
  REQUIRE(parse_fault("bitflip:step=0,rank=0,param=*,element=4,bit=9").bit == 9);
  REQUIRE_FALSE(f.permanent);
  REQUIRE(parse_fault("loss:step=0,rank=0,permanent=yes").permanent);
  REQUIRE_FALSE(parse_fault("nonfinite:step=0,rank=0,permanent=no").permanent);
  REQUIRE(parse_fault("update:attempt=4,rank=0").attempt == 4u);
  for (Phase phase :
       {Phase::window, Phase::exchange, Phase::ballot, Phase::stage, Phase::gather, Phase::confirm})
    REQUIRE(parse_fault("throw:step=0,rank=0,phase=" + std::string(name_of(phase))).phase == phase);
}

TEST_CASE("a fault that cannot be used is a ConfigError with reason and suggestion")
{
  for (const char* text :
       {"", "nonfinite", "nothing:step=1,rank=0", "nonfinite:rank=0,value=inf",
        "nonfinite:step=1,attempt=1,rank=0", "nonfinite:step=x,rank=0",
        "nonfinite:step=1,rank=0,value=7x", "nonfinite:step=1,rank=0,phase=stage",
        "throw:step=1,rank=0", "throw:step=1,rank=0,phase=publish", "nonfinite:step=1,rank=0,",
        "scale:step=1,rank=-1", "nonfinite:step=1,step=2,rank=0", "update:attempt=0,rank=0",
        "loss:step=1,rank=0,permanent=1", "update:step=1,rank=0,permanent=yes",
        "update:step=-1,rank=0", "bitflip:step=1,rank=0,bit=32", "loss:step=1,rank"}) {
    INFO(text);
    try {
      parse_fault(text);
      FAIL("accepted");
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      REQUIRE(message.find('(') != std::string::npos);
      REQUIRE(message.find("; ") != std::string::npos);
    }
  }
}
