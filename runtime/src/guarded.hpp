// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Local work between two ballots: what it throws becomes a flag of this rank, so that it reaches
// the next collective all the same.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "tutti/coordinator.hpp"
#include "tutti/error.hpp"
#include "tutti/first_text.hpp"

namespace tutti {
namespace detail {

/// Runs `work`; an exception becomes `failure` of `rank` in `phase`, and `text`, unless there is a
/// failure already. Only MpiError goes on: it cannot be voted on.
template <class Work>
void guarded(Phase phase, int rank, Failure& failure, std::string& text, Work&& work)
{
  const auto flag = [&](std::int64_t code, const char* what) {
    if (failure.exists()) return;
    failure = {static_cast<std::uint32_t>(phase), static_cast<std::uint32_t>(rank), code};
    text = text_of_failure(what);
  };
  try {
    work();
  } catch (const MpiError&) {
    throw;
  } catch (const Error& error) {
    flag(static_cast<std::int64_t>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    flag(static_cast<std::int64_t>(ErrorCode::device), "out of memory");
  } catch (const std::exception& error) {
    flag(0, error.what());
  } catch (...) {
    flag(0, "an exception that is not a std::exception");
  }
}

}  // namespace detail

template <class Work>
void Coordinator::locally(Phase phase, Failure& failure, std::string& text, Work&& work)
{
  enter(phase);
  detail::guarded(phase, topology_.rank(), failure, text, [&] {
    reach(phase);
    work();
  });
}

}  // namespace tutti
