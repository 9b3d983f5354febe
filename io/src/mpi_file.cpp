// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mpi_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/error.hpp"

namespace tutti::detail {
namespace {

/// 64 MiB a call: far from the 2 GiB where MPI-IO of Open MPI 4 fails.
constexpr std::size_t most_bytes = std::size_t{64} << 20;

std::string text_of(int status)
{
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  return text;
}

}  // namespace

void MpiFile::fail(const char* verb, const std::string& reason) const
{
  throw IoError(fmt::format(
      "cannot {} {} by MPI-IO ({}); the previous checkpoint is untouched, check the file system or "
      "write without MPI-IO (skeleton)",
      verb, path_.string(), reason));
}

MpiFile::MpiFile(const std::filesystem::path& path) : path_(path)
{
  int status = MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_WRONLY, MPI_INFO_NULL, &file_);
  if (status == MPI_SUCCESS) status = MPI_File_set_errhandler(file_, MPI_ERRORS_RETURN);
  if (status != MPI_SUCCESS) fail("open", text_of(status));
}

MpiFile::~MpiFile()
{
  if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
}

void MpiFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) const
{
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int count = static_cast<int>(std::min(bytes, most_bytes));
    MPI_Status written;
    const int status =
        MPI_File_write_at(file_, static_cast<MPI_Offset>(offset), from, count, MPI_BYTE, &written);
    if (status != MPI_SUCCESS) fail("write", text_of(status));
    int done = 0;
    if (MPI_Get_count(&written, MPI_BYTE, &done) != MPI_SUCCESS || done != count)
      fail("write", fmt::format("{} of {} bytes were written", done, count));
    from += count;
    offset += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
}

void MpiFile::close()
{
  if (file_ == MPI_FILE_NULL) return;
  const int status = MPI_File_close(&file_);
  if (status != MPI_SUCCESS) fail("close", text_of(status));
}

}  // namespace tutti::detail
