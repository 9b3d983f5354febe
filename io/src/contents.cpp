// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Taking metadata apart, and the comparison of what no hash compares: the texts with each other.
#include "contents.hpp"

#include <fmt/format.h>

#include "tutti/error.hpp"

namespace tutti::detail {

Contents::Contents(std::filesystem::path where, Metadata texts)
    : path(std::move(where)),
      metadata(std::move(texts)),
      manifest(manifest_from_json(metadata.manifest)),
      certificate(certificate_from_json(metadata.certificate)),
      control(control_state_from_json(metadata.control_state))
{
  std::size_t arrays = 0;
  std::size_t parameters = 0;
  for (const ManifestEntry& entry : manifest.optimizers) {
    layouts.emplace_back(entry.parameters, manifest.model_parallel);
    first_array.push_back(arrays);
    arrays += entry.arrays.size();
    parameters += entry.parameters.size();
  }
  if (control.step != certificate.step || control.attempt != certificate.attempt ||
      control.digest() != certificate.control_digest ||
      control.ledger.digest() != certificate.ledger_digest || control.clocks.size() != parameters)
    throw CheckpointError(
        fmt::format("checkpoint {} is refused (its control state is not that of its certificate); "
                    "restore another one",
                    path.string()));
}

Contents read_contents(const std::filesystem::path& path)
{
  try {
    return {path, read_metadata(path)};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // memory lacks for what the file says of itself
    throw CheckpointError(fmt::format("checkpoint {} is refused ({}); restore another one",
                                      path.string(), error.what()));
  }
}

}  // namespace tutti::detail
