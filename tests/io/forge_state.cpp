// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// usage: forge_state FILE ARRAY ELEMENT VALUE
// Puts a value into array number ARRAY of a checkpoint, and makes its hashes right again.
#include <cstdio>
#include <cstdlib>

#include "forge.hpp"

int main(int argc, char** argv)
{
  if (argc != 5) return 2;
  try {
    tutti::test::forge(argv[1], std::strtoull(argv[2], nullptr, 10),
                       std::strtoull(argv[3], nullptr, 10), std::strtof(argv[4], nullptr));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
