// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One integer minimum finds the first rank with something to say; only then do words travel.
#include "agree.hpp"

#include <fmt/format.h>

#include "tutti/mpi_check.hpp"

namespace tutti::detail {

std::string first_text(MPI_Comm communicator, const std::string& text)
{
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  const int mine = text.empty() ? size : rank;
  int speaker = size;
  check_mpi(MPI_Allreduce(&mine, &speaker, 1, MPI_INT, MPI_MIN, communicator), "MPI_Allreduce");
  if (speaker == size) return {};

  int length = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, speaker, communicator), "MPI_Bcast");
  std::string first = rank == speaker ? text : std::string(static_cast<std::size_t>(length), ' ');
  check_mpi(MPI_Bcast(first.data(), length, MPI_CHAR, speaker, communicator), "MPI_Bcast");
  return first;
}

std::string readable_bytes(std::size_t bytes)
{
  const char* const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  int i = 0;
  for (; value >= 1024 && i < 5; ++i) value /= 1024;
  return fmt::format("{:.1f} {}", value, unit[i]);
}

}  // namespace tutti::detail
