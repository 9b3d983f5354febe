// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reading IDX files: what is in them comes out, and every kind of damage is named.
#include "idx_images.hpp"

#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "catch.hpp"
#include "tutti/error.hpp"

using namespace tutti;
using namespace tutti::apps;
namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("tutti-idx-" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
  std::string images() const { return file("i.gz"); }
  std::string labels() const { return file("l.gz"); }
};

void write_gzip(const std::string& path, const Bytes& bytes)
{
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

Bytes header(std::uint8_t kind, std::initializer_list<std::uint32_t> extents)
{
  Bytes bytes{0, 0, 8, kind};
  for (std::uint32_t extent : extents)
    for (int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(extent >> shift));
  return bytes;
}

Bytes operator+(Bytes a, const Bytes& b)
{
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// 3 images of 2 x 4 pixels 0..23, labels 0 9 4.
const Bytes pixels = [] {
  Bytes bytes(24);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return bytes;
}();
const Bytes good_images = header(3, {3, 2, 4}) + pixels;
const Bytes good_labels = header(1, {3}) + Bytes{0, 9, 4};

template <class Failure>
std::string damage(const Folder& folder)
{
  try {
    read_labelled_images(folder.images(), folder.labels());
  } catch (const Failure& error) {
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

void cut(const std::string& path, std::uintmax_t by)
{
  fs::resize_file(path, fs::file_size(path) - by);
}

void flip(const std::string& path, std::streamoff from_end)
{
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(from_end, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(from_end, std::ios::end);
  file.put(static_cast<char>(byte ^ 0x10));
}

}  // namespace

TEST_CASE("Images and labels come out as they are in the files", "[idx]")
{
  const Folder folder;
  write_gzip(folder.images(), good_images);
  write_gzip(folder.labels(), good_labels);
  const LabelledImages images = read_labelled_images(folder.images(), folder.labels());
  CHECK(images.count == 3);
  CHECK(images.rows == 2);
  CHECK(images.columns == 4);
  CHECK(images.pixels == pixels);
  CHECK(images.labels == Bytes{0, 9, 4});
  CHECK(*images.image(2) == 16);
}

TEST_CASE("A missing file is a matter of configuration and names the package", "[idx]")
{
  const Folder folder;
  write_gzip(folder.images(), good_images);
  const std::string text = damage<ConfigError>(folder);
  CHECK(holds(text, folder.labels()));
  CHECK(holds(text, "dataset-fashion-mnist"));
}

TEST_CASE("Every damage to a file is found and named", "[idx]")
{
  const Folder folder;
  write_gzip(folder.images(), good_images);
  write_gzip(folder.labels(), good_labels);
  const auto images = [&](const Bytes& bytes) {
    write_gzip(folder.images(), bytes);
    return damage<IoError>(folder);
  };
  const auto labels = [&](const Bytes& bytes) {
    write_gzip(folder.images(), good_images);
    write_gzip(folder.labels(), bytes);
    return damage<IoError>(folder);
  };
  CHECK(holds(images(good_labels), "magic number"));
  CHECK(holds(images({}), "ends"));
  CHECK(holds(images(header(3, {3, 2, 4})), "ends 24 bytes early"));
  CHECK(holds(images(good_images + Bytes{1}), "longer than its header says"));
  CHECK(holds(images(header(3, {0, 2, 4})), "0 images"));
  CHECK(holds(images(header(3, {0xffffffffu, 2, 4}) + pixels), "4294967295 images"));
  CHECK(holds(images(header(3, {4000000, 28, 28}) + pixels), "early"));
  CHECK(holds(labels(header(1, {2}) + Bytes{0, 9}), "2 labels for 3 images"));
  CHECK(holds(labels(header(1, {3}) + Bytes{0, 9}), "ends 1 bytes early"));
  CHECK(holds(labels(header(1, {3}) + Bytes{0, 10, 4}), "label 1 is 10"));
  CHECK(holds(labels(good_images), "magic number"));
}

TEST_CASE("A truncated or changed gzip stream is damage even where the payload is whole", "[idx]")
{
  const Folder folder;
  write_gzip(folder.labels(), good_labels);
  // The last 8 bytes are the checksum and the length; the payload can be read without them.
  for (std::uintmax_t by : {1u, 4u, 8u, 20u}) {
    write_gzip(folder.images(), good_images);
    cut(folder.images(), by);
    CAPTURE(by);
    CHECK(holds(damage<IoError>(folder), "damaged"));
  }
  for (std::streamoff from_end : {-1, -5, -12}) {
    write_gzip(folder.images(), good_images);
    flip(folder.images(), from_end);
    CAPTURE(from_end);
    CHECK(holds(damage<IoError>(folder), "damaged"));
  }
}
