// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tutti/first_text.hpp"

#include <algorithm>
#include <cstdint>

#include "tutti/mpi_check.hpp"

namespace tutti {

int first_text(MPI_Comm communicator, int& code, std::string& text)
{
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  int first = code != 0 ? rank : size;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, communicator),
            "MPI_Allreduce of who speaks");
  if (first == size) return -1;
  check_mpi(MPI_Bcast(&code, 1, MPI_INT, first, communicator), "MPI_Bcast of its code");
  broadcast_text(communicator, text, first);
  return first;
}

std::string first_text(MPI_Comm communicator, std::string text)
{
  int code = text.empty() ? 0 : 1;
  first_text(communicator, code, text);
  return text;
}

std::string text_of_failure(const char* what) noexcept
{
  try {
    return what;
  } catch (...) {
    return "out of memory";  // short enough to need none
  }
}

void broadcast_text(MPI_Comm communicator, std::string& text, int root)
{
  std::uint64_t length = text.size();
  check_mpi(MPI_Bcast(&length, 1, MPI_UINT64_T, root, communicator), "MPI_Bcast of a length");
  text.resize(length);
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  for (std::uint64_t begin = 0; begin < length; begin += most) {
    const int count = static_cast<int>(std::min(most, length - begin));
    check_mpi(MPI_Bcast(text.data() + begin, count, MPI_CHAR, root, communicator),
              "MPI_Bcast of a text");
  }
}

}  // namespace tutti
