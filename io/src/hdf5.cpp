// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Property lists are chosen here so that equal contents give equal bytes: no object times, one
// format version, early allocation, no fill. What the groups and datasets mean is format.cpp.
#include "hdf5.hpp"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <numeric>

namespace tutti::detail {
namespace {

/// Datasets of blocks begin at a page, so that the cuts between what ranks write, whole blocks, are
/// between pages: two nodes never write parts of the same page, which a network file system's
/// clients would send as a whole each.
constexpr hsize_t page = 4096;
constexpr hsize_t least_aligned = 16384;  // a block

struct ErrorStack {
  std::string outermost, innermost;
};

herr_t take_message(unsigned, const H5E_error2_t* error, void* data)
{
  auto& stack = *static_cast<ErrorStack*>(data);
  if (error->desc == nullptr || *error->desc == '\0') return 0;
  if (stack.outermost.empty()) stack.outermost = error->desc;
  stack.innermost = error->desc;
  return 0;
}

/// The serial driver's text carries addresses and times; errno is what a user can act on.
std::string shortened(const std::string& text)
{
  const auto number = text.find("errno = ");
  const std::string key = "error message = '";
  const auto begin = text.find(key);
  const auto end = begin == text.npos ? begin : text.find('\'', begin + key.size());
  if (number == text.npos || end == text.npos) return text;
  return fmt::format("{}, errno {}", text.substr(begin + key.size(), end - begin - key.size()),
                     std::stoi(text.substr(number + 8)));
}

PropertyList access_list()
{
  PropertyList list(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate");
  check_hdf5(H5Pset_libver_bounds(list.get(), file_version, file_version), "H5Pset_libver_bounds");
  check_hdf5(H5Pset_alignment(list.get(), least_aligned, page), "H5Pset_alignment");
  return list;
}

PropertyList creation_list(hid_t kind)
{
  PropertyList list(H5Pcreate(kind), "H5Pcreate");
  check_hdf5(H5Pset_obj_track_times(list.get(), false), "H5Pset_obj_track_times");
  return list;
}

PropertyList flat_creation_list()
{
  PropertyList list = creation_list(H5P_DATASET_CREATE);
  check_hdf5(H5Pset_layout(list.get(), H5D_CONTIGUOUS), "H5Pset_layout");
  check_hdf5(H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  check_hdf5(H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  return list;
}

/// Space padding: readers get the bare text, and h5dump prints no zeros.
Datatype text_type(std::size_t bytes)
{
  Datatype type(H5Tcopy(H5T_C_S1), "H5Tcopy");
  check_hdf5(H5Tset_size(type.get(), bytes), "H5Tset_size");
  check_hdf5(H5Tset_strpad(type.get(), H5T_STR_SPACEPAD), "H5Tset_strpad");
  check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset");
  return type;
}

Dataset open_dataset(hid_t file, const std::string& path)
{
  return {H5Dopen2(file, path.c_str(), H5P_DEFAULT), "H5Dopen"};
}

}  // namespace

void throw_hdf5_failure(const char* call)
{
  ErrorStack stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take_message, &stack);
  H5Eclear2(H5E_DEFAULT);
  std::string reason = shortened(stack.innermost);
  if (reason == stack.innermost && stack.outermost != stack.innermost)
    reason = fmt::format("{}: {}", stack.outermost, stack.innermost);
  throw Hdf5Failure(fmt::format("{}: {}", call, reason.empty() ? "no reason given" : reason));
}

QuietHdf5::QuietHdf5()
{
  H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

QuietHdf5::~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }

void make_empty_file(const std::filesystem::path& path)
{
  const PropertyList creation = creation_list(H5P_FILE_CREATE);
  FileHandle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access_list().get()),
                  "H5Fcreate");
  file.close("H5Fclose");
}

FileHandle open_file(const std::filesystem::path& path, bool to_write)
{
  return {H5Fopen(path.c_str(), to_write ? H5F_ACC_RDWR : H5F_ACC_RDONLY,
                  to_write ? access_list().get() : H5P_DEFAULT),
          "H5Fopen"};
}

Dataspace flat_space(std::uint64_t elements)
{
  const hsize_t extent = elements;
  return {H5Screate_simple(1, &extent, nullptr), "H5Screate_simple"};
}

void make_groups(hid_t file, const std::string& path)
{
  const PropertyList creation = creation_list(H5P_GROUP_CREATE);
  for (std::size_t end = path.find('/', 1); end != path.npos; end = path.find('/', end + 1)) {
    const std::string group = path.substr(0, end);
    if (check_hdf5(H5Lexists(file, group.c_str(), H5P_DEFAULT), "H5Lexists") > 0) continue;
    const Group made(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                     "H5Gcreate");
  }
}

Dataset create_flat(hid_t file, const std::string& path, hid_t type, std::uint64_t elements)
{
  make_groups(file, path);
  return {H5Dcreate2(file, path.c_str(), type, flat_space(elements).get(), H5P_DEFAULT,
                     flat_creation_list().get(), H5P_DEFAULT),
          "H5Dcreate"};
}

std::uint64_t flat_offset(hid_t file, const std::string& path, hid_t type, std::uint64_t elements)
{
  const Dataset dataset = open_dataset(file, path);
  const PropertyList creation(H5Dget_create_plist(dataset.get()), "H5Dget_create_plist");
  if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0)
    throw Hdf5Failure(fmt::format("{} is not contiguous; the file was repacked", path));
  const Datatype stored(H5Dget_type(dataset.get()), "H5Dget_type");
  if (check_hdf5(H5Tequal(stored.get(), type), "H5Tequal") == 0)
    throw Hdf5Failure(fmt::format("{} has another element type", path));
  const Dataspace space(H5Dget_space(dataset.get()), "H5Dget_space");
  const hssize_t count = check_hdf5(H5Sget_simple_extent_npoints(space.get()), "H5Sget_extent");
  if (static_cast<std::uint64_t>(count) != elements)
    throw Hdf5Failure(fmt::format("{} has {} elements instead of {}", path, count, elements));
  if (elements == 0) return 0;
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) throw Hdf5Failure(fmt::format("{} has no place in the file", path));
  return offset;
}

void write_text(hid_t file, const std::string& path, const std::string& text)
{
  make_groups(file, path);
  const std::string padded = text.empty() ? " " : text;
  const Datatype type = text_type(padded.size());
  const Dataspace space(H5Screate(H5S_SCALAR), "H5Screate");
  Dataset dataset(H5Dcreate2(file, path.c_str(), type.get(), space.get(), H5P_DEFAULT,
                             flat_creation_list().get(), H5P_DEFAULT),
                  "H5Dcreate");
  check_hdf5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()),
             "H5Dwrite");
  dataset.close("H5Dclose");
}

std::string read_text(hid_t file, const std::string& path)
{
  const Dataset dataset = open_dataset(file, path);
  const Datatype type(H5Dget_type(dataset.get()), "H5Dget_type");
  const Dataspace space(H5Dget_space(dataset.get()), "H5Dget_space");
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
      H5Sget_simple_extent_npoints(space.get()) != 1)
    throw Hdf5Failure(fmt::format("{} is not a text", path));
  std::string text(H5Tget_size(type.get()), ' ');
  check_hdf5(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()),
             "H5Dread");
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

bool has_dataset(hid_t file, const std::string& path)
{
  return check_hdf5(H5Lexists(file, path.c_str(), H5P_DEFAULT), "H5Lexists") > 0;
}

void write_attribute(hid_t file, const char* name, std::uint32_t value)
{
  const Dataspace space(H5Screate(H5S_SCALAR), "H5Screate");
  Attribute attribute(H5Acreate2(file, name, H5T_STD_U32LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                      "H5Acreate");
  check_hdf5(H5Awrite(attribute.get(), H5T_NATIVE_UINT32, &value), "H5Awrite");
  attribute.close("H5Aclose");
}

std::uint32_t read_attribute(hid_t file, const char* name)
{
  const Attribute attribute(H5Aopen(file, name, H5P_DEFAULT), "H5Aopen");
  const Dataspace space(H5Aget_space(attribute.get()), "H5Aget_space");
  if (H5Sget_simple_extent_npoints(space.get()) != 1)
    throw Hdf5Failure(fmt::format("attribute {} is not one number", name));
  std::uint32_t value = 0;
  check_hdf5(H5Aread(attribute.get(), H5T_NATIVE_UINT32, &value), "H5Aread");
  return value;
}

void create_view(hid_t file, const std::string& path, hid_t type,
                 std::span<const std::size_t> shape, std::span<const VirtualSlab> slabs,
                 const std::string& source, std::uint64_t source_elements)
{
  make_groups(file, path);
  const PropertyList creation = creation_list(H5P_DATASET_CREATE);
  if (H5Tget_class(type) == H5T_FLOAT) {
    const float hole = std::numeric_limits<float>::quiet_NaN();
    check_hdf5(H5Pset_fill_value(creation.get(), H5T_NATIVE_FLOAT, &hole), "H5Pset_fill_value");
  }
  std::vector<hsize_t> extents(shape.begin(), shape.end());
  if (extents.empty()) extents.push_back(1);  // a virtual dataset cannot be a scalar
  const Dataspace space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                        "H5Screate_simple");
  for (const VirtualSlab& slab : slabs) {
    check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, slab.begin.data(), nullptr,
                                   slab.shape.data(), nullptr),
               "H5Sselect_hyperslab");
    const Dataspace flat = flat_space(source_elements);
    const hsize_t begin = slab.first_element;
    const hsize_t count =
        std::accumulate(slab.shape.begin(), slab.shape.end(), hsize_t{1}, std::multiplies<>());
    check_hdf5(H5Sselect_hyperslab(flat.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr),
               "H5Sselect_hyperslab");
    check_hdf5(H5Pset_virtual(creation.get(), space.get(), ".", source.c_str(), flat.get()),
               "H5Pset_virtual");
  }
  check_hdf5(H5Sselect_all(space.get()), "H5Sselect_all");
  Dataset view(
      H5Dcreate2(file, path.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      "H5Dcreate");
  view.close("H5Dclose");
}

}  // namespace tutti::detail
