// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How a call of the C interface begins and ends: the floating-point environment of tutti inside,
// an exception turned into a status and the thread's message, arguments that are looked at before
// they are used.
#pragma once

#include <new>
#include <string>

#include "tutti/coordinator.hpp"
#include "tutti/error.hpp"
#include "tutti/fp_environment.hpp"
#include "tutti/tutti.h"

namespace tutti::c {

/// Remembers the message for this thread.
tutti_status report(tutti_status status, const char* message) noexcept;

/// Runs the body of a call; what it throws becomes the status.
template <class Work>
tutti_status guarded(Work&& work) noexcept
{
  const tutti::detail::FloatingPointGuard ieee;
  try {
    work();
    return TUTTI_SUCCESS;
  } catch (const Error& error) {
    return report(static_cast<tutti_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return report(TUTTI_DEVICE_ERROR, "out of memory (an allocation failed); use more ranks");
  } catch (const std::exception& error) {
    return report(TUTTI_INTERNAL_ERROR, error.what());
  } catch (...) {
    return report(TUTTI_INTERNAL_ERROR, "an exception that is not a std::exception");
  }
}

/// `*pointer`, or InvalidArgument naming what is NULL.
template <class Object>
Object& given(Object* pointer, const char* what)
{
  if (pointer == nullptr)
    throw InvalidArgument(std::string(what) + " is missing (the argument is NULL); give one");
  return *pointer;
}

inline std::string text(const char* pointer, const char* what) { return &given(pointer, what); }

}  // namespace tutti::c
