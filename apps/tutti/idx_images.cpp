// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reading IDX files and sharing them within a node.
#include "idx_images.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "agreement.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti::apps {
namespace {

/// A gzip file that is read to its very end, so that its checksum is looked at. By inflate(): what
/// gzread() says of a file without its last bytes depends on the version of zlib.
class GzipReader {
 public:
  explicit GzipReader(std::string path) : path_(std::move(path)), in_(std::size_t{1} << 17)
  {
    errno = 0;
    file_.reset(std::fopen(path_.c_str(), "rb"));
    if (!file_)
      throw ConfigError(fmt::format(
          "data file {} cannot be opened ({}); install the package dataset-fashion-mnist or "
          "give its folder with --data",
          path_, std::strerror(errno)));
    constexpr int gzip_only = 15 + 16;  // largest window, with the header of gzip
    if (inflateInit2(&stream_, gzip_only) != Z_OK) throw std::bad_alloc();
  }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;
  ~GzipReader() { inflateEnd(&stream_); }

  void read(void* to, std::size_t bytes)
  {
    const std::size_t got = inflate_some(to, bytes);
    if (got < bytes) damaged(fmt::format("it ends {} bytes early", bytes - got));
  }

  std::uint32_t read_big_endian()
  {
    std::uint8_t b[4];
    read(b, sizeof b);
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  }

  /// Nothing may follow, and the checksum must fit.
  void finish()
  {
    std::uint8_t extra = 0;
    if (inflate_some(&extra, 1) != 0) damaged("it is longer than its header says");
    if (stream_.avail_in != 0 || refill()) damaged("something follows the gzip stream");
  }

  [[noreturn]] void damaged(const std::string& why) const
  {
    throw IoError(
        fmt::format("data file {} is damaged ({}); install the package dataset-fashion-mnist again "
                    "or fetch the file anew",
                    path_, why));
  }

 private:
  /// False at the end of the file.
  bool refill()
  {
    errno = 0;
    stream_.next_in = in_.data();
    stream_.avail_in = static_cast<uInt>(std::fread(in_.data(), 1, in_.size(), file_.get()));
    if (std::ferror(file_.get())) damaged(std::strerror(errno));
    return stream_.avail_in != 0;
  }

  /// Fewer bytes than asked for only at the end of the stream, whose checksum was right.
  std::size_t inflate_some(void* to, std::size_t bytes)
  {
    stream_.next_out = static_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(bytes);
    while (stream_.avail_out != 0 && !ended_) {
      if (stream_.avail_in == 0 && !refill()) damaged("unexpected end of the gzip stream");
      const int code = inflate(&stream_, Z_NO_FLUSH);
      ended_ = code == Z_STREAM_END;
      if (code != Z_OK && !ended_) damaged(stream_.msg != nullptr ? stream_.msg : "no gzip stream");
    }
    return bytes - stream_.avail_out;
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::vector<Bytef> in_;
  std::unique_ptr<std::FILE, Close> file_;
  z_stream stream_{};
  bool ended_ = false;
};

constexpr std::uint32_t images_magic = 0x00000803, labels_magic = 0x00000801;
constexpr std::uint32_t most_images = 1u << 22, most_pixels = 1u << 8;

void broadcast(LabelledImages& images, MPI_Comm node)
{
  std::uint32_t head[3] = {images.count, images.rows, images.columns};
  check_mpi(MPI_Bcast(head, 3, MPI_UINT32_T, 0, node), "MPI_Bcast");
  images.count = head[0], images.rows = head[1], images.columns = head[2];
  images.pixels.resize(images.count * images.pixels_per_image());
  images.labels.resize(images.count);
  constexpr std::size_t chunk = std::size_t{1} << 24;
  for (std::size_t at = 0; at < images.pixels.size(); at += chunk)
    check_mpi(MPI_Bcast(images.pixels.data() + at,
                        static_cast<int>(std::min(chunk, images.pixels.size() - at)), MPI_UINT8_T,
                        0, node),
              "MPI_Bcast");
  check_mpi(MPI_Bcast(images.labels.data(), static_cast<int>(images.count), MPI_UINT8_T, 0, node),
            "MPI_Bcast");
}

}  // namespace

LabelledImages read_labelled_images(const std::string& images_path, const std::string& labels_path)
{
  LabelledImages images;
  GzipReader pixels(images_path);
  GzipReader labels(
      labels_path);  // both are opened before any is read: a missing one is the first thing to say
  if (const std::uint32_t magic = pixels.read_big_endian(); magic != images_magic)
    pixels.damaged(
        fmt::format("its magic number is {:#010x}, {:#010x} expected", magic, images_magic));
  images.count = pixels.read_big_endian();
  images.rows = pixels.read_big_endian();
  images.columns = pixels.read_big_endian();
  if (images.count == 0 || images.count > most_images || images.rows == 0 ||
      images.rows > most_pixels || images.columns == 0 || images.columns > most_pixels)
    pixels.damaged(fmt::format("its header says {} images of {} x {} pixels", images.count,
                               images.rows, images.columns));
  // Piece by piece, so that a header that lies does not allocate more than the file has.
  const std::size_t total = images.count * images.pixels_per_image();
  for (std::size_t at = 0; at < total;) {
    const std::size_t bytes = std::min<std::size_t>(total - at, 1u << 24);
    images.pixels.resize(at + bytes);
    pixels.read(images.pixels.data() + at, bytes);
    at += bytes;
  }
  pixels.finish();

  if (const std::uint32_t magic = labels.read_big_endian(); magic != labels_magic)
    labels.damaged(
        fmt::format("its magic number is {:#010x}, {:#010x} expected", magic, labels_magic));
  if (const std::uint32_t count = labels.read_big_endian(); count != images.count)
    labels.damaged(fmt::format("it has {} labels for {} images", count, images.count));
  images.labels.resize(images.count);
  labels.read(images.labels.data(), images.count);
  labels.finish();
  for (std::size_t i = 0; i < images.labels.size(); ++i)
    if (images.labels[i] >= LabelledImages::classes)
      labels.damaged(fmt::format("label {} is {}, below {} expected", i, images.labels[i],
                                 LabelledImages::classes));
  return images;
}

ImageData read_image_data(const std::string& folder)
{
  const auto pair = [&](const char* part) {
    return read_labelled_images(fmt::format("{}/{}-images-idx3-ubyte.gz", folder, part),
                                fmt::format("{}/{}-labels-idx1-ubyte.gz", folder, part));
  };
  ImageData data{pair("train"), pair("t10k")};
  if (data.train.rows != data.test.rows || data.train.columns != data.test.columns)
    throw IoError(fmt::format(
        "data in {} does not fit together (training images of {} x {}, test images of {} x {} "
        "pixels); fetch the files anew",
        folder, data.train.rows, data.train.columns, data.test.rows, data.test.columns));
  return data;
}

ImageData load_image_data(const std::string& folder, MPI_Comm world)
{
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  int node_rank = 0;
  check_mpi(MPI_Comm_rank(node, &node_rank), "MPI_Comm_rank");
  ImageData data;
  collectively(world, [&] {
    if (node_rank == 0) data = read_image_data(folder);
  });
  broadcast(data.train, node);
  broadcast(data.test, node);
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  return data;
}

}  // namespace tutti::apps
