// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checkpoints that a buggy writer would have made: every hash is right, a value is not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "format.hpp"
#include "posix_file.hpp"
#include "tutti/block.hpp"

namespace tutti::test {

/// Bytes of the file, changed in place.
inline void patch(const std::filesystem::path& file, std::uint64_t offset, const void* bytes,
                  std::size_t count)
{
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
}

/// Puts a value into the payload and makes every hash right again, as a buggy writer would.
inline void forge(const std::filesystem::path& file, std::size_t array, std::uint64_t element,
                  float value)
{
  detail::Metadata metadata = detail::read_metadata(file);
  const auto manifest = detail::manifest_from_json(metadata.manifest);
  detail::Certificate certificate = detail::certificate_from_json(metadata.certificate);
  const detail::ArrayPlace place = metadata.places[array];
  patch(file, place.data + element * sizeof value, &value, sizeof value);

  const std::size_t block = element / block_elements;
  const auto opened = detail::PosixFile::open_to_write(file);
  std::vector<float> values(block_elements);
  opened.read_at(place.data + block * detail::block_bytes, values.data(), detail::block_bytes);
  std::vector<std::uint64_t> table(manifest.optimizers[0].blocks);
  opened.read_at(place.hashes, table.data(), table.size() * sizeof table[0]);
  table[block] = detail::hash_block(values.data());
  opened.write_at(place.hashes, table.data(), table.size() * sizeof table[0]);

  certificate.tables[array] = detail::hash_bytes(table.data(), table.size() * sizeof table[0]);
  const std::string text = to_json(certificate);
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::size_t at = bytes.find(metadata.certificate);
  if (text.size() != metadata.certificate.size() || at == bytes.npos)
    throw std::runtime_error("the certificate cannot be replaced in place");
  patch(file, at, text.data(), text.size());
}

}  // namespace tutti::test
