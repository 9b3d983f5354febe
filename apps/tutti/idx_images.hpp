// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Labelled images in the IDX format of MNIST, gzipped as Debian ships Fashion-MNIST. They stay
// uint8; who uses them normalises them.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::apps {

struct LabelledImages {
  std::uint32_t count = 0, rows = 0, columns = 0;
  std::vector<std::uint8_t> pixels;  ///< [count x rows x columns]
  std::vector<std::uint8_t> labels;  ///< [count], each below `classes`
  static constexpr std::uint32_t classes = 10;
  std::size_t pixels_per_image() const { return std::size_t{rows} * columns; }
  const std::uint8_t* image(std::size_t index) const
  {
    return pixels.data() + index * pixels_per_image();
  }
};

struct ImageData {
  LabelledImages train, test;
};

/// Reads a pair of files. Throws ConfigError when one is missing and IoError when one is damaged
/// (truncated or broken gzip, wrong magic, counts that differ, a label that is no class).
LabelledImages read_labelled_images(const std::string& images_path, const std::string& labels_path);

/// The training and test images of `folder` ({train,t10k}-{images-idx3,labels-idx1}-ubyte.gz).
ImageData read_image_data(const std::string& folder);

/// Collective over `world`: one rank of each node reads the files and broadcasts them within its
/// node, so each file is opened once a node. All ranks throw Refusal if it fails on any node.
ImageData load_image_data(const std::string& folder, MPI_Comm world);

}  // namespace tutti::apps
