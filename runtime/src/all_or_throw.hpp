// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Local work outside of a step that may fail on one rank, before anything is built on it.
#pragma once

#include <mpi.h>

#include <exception>
#include <new>
#include <string>

#include "tutti/error.hpp"
#include "tutti/first_text.hpp"

namespace tutti::detail {

/// Collective over `communicator`: every rank runs `work`, which is local. If it throws anywhere,
/// all ranks throw `Thrown` with the text of the lowest such rank. MpiError is not agreed on.
template <class Thrown, class Work>
void all_or_throw(MPI_Comm communicator, Work&& work)
{
  std::string text;
  try {
    work();
  } catch (const MpiError&) {
    throw;
  } catch (const std::bad_alloc&) {
    text = text_of_failure("memory is exhausted (an allocation failed); use more ranks or nodes");
  } catch (const std::exception& error) {
    text = text_of_failure(error.what());
  } catch (...) {
    text = text_of_failure("an exception that is not a std::exception");
  }
  text = first_text(communicator, text);
  if (!text.empty()) throw Thrown(text);
}

}  // namespace tutti::detail
