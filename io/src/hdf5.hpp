// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Thin RAII over HDF5 identifiers, checked calls and the few compound operations that a checkpoint
// is made of. Files are opened by one rank or by each for itself; nothing here is collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hdf5_compat.hpp"

namespace tutti::detail {

/// A failed HDF5 call, with the reason from HDF5's error stack. Internal: users of this header turn
/// it into IoError or CheckpointError.
struct Hdf5Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void throw_hdf5_failure(const char* call);
/// Throws Hdf5Failure for a negative `result`; returns it otherwise.
template <class Result>
Result check_hdf5(Result result, const char* call)
{
  if (result < 0) throw_hdf5_failure(call);
  return result;
}

/// Keeps HDF5 from printing its error stacks; puts the caller's own handler back.
class QuietHdf5 {
 public:
  QuietHdf5();
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;
  ~QuietHdf5();

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

template <herr_t (*Close)(hid_t)>
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, const char* call) : id_(check_hdf5(id, call)) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept
  {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle()
  {
    if (id_ >= 0) Close(id_);
  }
  hid_t get() const { return id_; }
  void close(const char* call)
  {
    if (id_ >= 0) check_hdf5(Close(std::exchange(id_, H5I_INVALID_HID)), call);
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
};
using FileHandle = Handle<H5Fclose>;
using Dataset = Handle<H5Dclose>;
using Dataspace = Handle<H5Sclose>;
using Datatype = Handle<H5Tclose>;
using Group = Handle<H5Gclose>;
using Attribute = Handle<H5Aclose>;
using PropertyList = Handle<H5Pclose>;

/// A new file with nothing in it (less than 1 KiB), over whatever `path` is.
void make_empty_file(const std::filesystem::path& path);
/// By the serial driver. Closing a file that could not be written leaves HDF5 1.10 with a dangling
/// identifier and the process with a crash at its end, so whoever changes a file reserves the room
/// for it before.
FileHandle open_file(const std::filesystem::path& path, bool to_write);

Dataspace flat_space(std::uint64_t elements);
/// A contiguous 1-D dataset, its space in the file taken at once and never filled; groups on its
/// path are made.
Dataset create_flat(hid_t file, const std::string& path, hid_t type, std::uint64_t elements);
/// Where the first element of a contiguous, unfiltered 1-D dataset of `elements` elements of `type`
/// lies in the file; throws Hdf5Failure if the dataset is not that.
std::uint64_t flat_offset(hid_t file, const std::string& path, hid_t type, std::uint64_t elements);
void make_groups(hid_t file, const std::string& path);

void write_text(hid_t file, const std::string& path, const std::string& text);
std::string read_text(hid_t file, const std::string& path);
bool has_dataset(hid_t file, const std::string& path);
void write_attribute(hid_t file, const char* name, std::uint32_t value);
/// Throws Hdf5Failure if there is none.
std::uint32_t read_attribute(hid_t file, const char* name);

/// One slab of a virtual dataset: where it lies there, and from which element of the flat dataset
/// on it comes, row-major.
struct VirtualSlab {
  std::vector<hsize_t> begin, shape;
  std::uint64_t first_element = 0;
};
/// A view of values of `type` with a real shape on the flat dataset `source`; what no slab covers
/// is NaN, or 0 for integers.
void create_view(hid_t file, const std::string& path, hid_t type,
                 std::span<const std::size_t> shape, std::span<const VirtualSlab> slabs,
                 const std::string& source, std::uint64_t source_elements);

}  // namespace tutti::detail
