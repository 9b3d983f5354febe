// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is recorded when a verdict is not Commit: where a value first went bad, on whose rank, with
// which numbers and samples. Equal on all ranks. How it is found is in the participants, when it is
// made in the coordinator; here are the record, its text and its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/interval.hpp"
#include "tutti/recomputation.hpp"
#include "tutti/verdict.hpp"

namespace tutti {

/// In which precision what was computed, by name.
struct PrecisionNames {
  std::string forward, gradients, wire, master, arithmetic;
  bool operator==(const PrecisionNames&) const = default;
};

/// What only a participant of the rank that an Offender names can say of it.
struct OffenderDetail {
  std::uint64_t count = 0;  ///< bad elements of that parameter on that rank and stage; 0: not known
  /// Of the gradient at that element, still scaled, where it is finite.
  std::optional<double> gradient_magnitude;
  std::string array;  ///< what held the value: "gradient", "sum", "exp_avg_sq", "weights", ...
};

/// One array for the reproduction of an incident, as NumPy knows it.
struct NamedArray {
  std::string name;
  std::string type;  ///< NumPy's: "|u1", "<u4", "<f4", "<u8"
  std::vector<std::size_t> shape;
  std::vector<std::byte> bytes;  ///< row-major
};

/// What the caller knows of a micro-batch: ids of its samples, inputs and labels.
struct Evidence {
  std::vector<std::uint64_t> sample_ids;
  std::vector<NamedArray> arrays;
};
/// Called only on the rank that an incident names, with the sample positions that it had in the
/// micro-batch (in the whole window where the micro-batch is not known). Local; what it throws is
/// noted in the incident.
using EvidenceSource = std::function<Evidence(Interval positions)>;

struct Incident {
  // The attempt.
  std::uint64_t step = 0;       ///< updates committed before it
  std::uint64_t attempt = 0;    ///< from 1
  std::string verdict;          ///< "skip" or "halt"
  std::string reason;           ///< name_of(Reason)
  std::string message;          ///< one sentence for people
  Interval window;              ///< sample positions of all ranks
  std::uint64_t nonfinite = 0;  ///< bad elements over all ranks: gradients, or staged values
  std::uint64_t ranks_with_nonfinite_loss = 0;
  std::uint64_t repeats = 0;  ///< how often this window was bad, this time included, if that counts
  double loss_scale = 1;
  /// Largest finite magnitude in the gradients that were scanned, over all ranks, unscaled.
  double largest_finite = 0;

  // The first offender. Without one, `stage` is empty.
  std::string stage;       ///< name_of(Stage)
  std::uint32_t rank = 0;  ///< whose contribution, update, loss, failure or replica it is
  std::string node;        ///< that rank's
  /// False where the sum came from MPI: then `rank` is the owner that saw it.
  bool contributor_known = true;
  /// The value was bad on that rank already; otherwise it only became so in the sum over ranks.
  bool before_synchronization = false;
  std::string optimizer, parameter;    ///< empty for a loss
  std::uint64_t element = 0;           ///< global index
  std::string value;                   ///< "nan", "inf" or "-inf"
  std::uint32_t value_bits = 0;        ///< as fp32
  std::uint64_t count = 0;             ///< bad elements of that parameter on that rank
  std::string array;                   ///< what held it
  std::optional<std::uint32_t> micro;  ///< micro-batch of the window
  std::optional<double> magnitude;     ///< of the unscaled gradient there, where it is finite
  PrecisionNames precision;
  std::vector<double> micro_losses;  ///< of that rank: mean loss of each micro-batch, NaN if empty
  Interval positions;                ///< of that rank in that micro-batch (or window)
  std::vector<std::uint64_t> sample_ids;  ///< of these positions, the first 4096

  /// What computing that rank's window again came to, where it was.
  std::optional<Recomputation> recomputation;

  // Other troubles.
  std::string failure_phase, failure_text;  ///< of `rank`; empty: no failure
  std::int64_t failure_code = 0;
  std::string mismatch;  ///< name_of(AgreedField); empty: none
  std::uint64_t mismatch_least = 0, mismatch_greatest = 0;
  std::optional<std::uint64_t> replica_block;  ///< block of the parameter on `rank`

  // To reproduce it.
  std::uint32_t data_parallel = 0, model_parallel = 0;  ///< degrees of the job; 0: not known
  std::uint32_t micro_batches = 0;                      ///< of the window
  std::string configuration;  ///< JSON, CoordinatorOptions::configuration; empty: not known
  std::string checkpoint;     ///< newest one that the run made or began with; empty: none
  std::uint64_t checkpoint_step = 0;
  std::vector<std::string> array_files;  ///< beside the incident's own file
  std::string file;                      ///< where this was written; empty: nowhere
  std::string write_error;               ///< why it could not be

  bool operator==(const Incident& other) const;
};

/// JSON that gives back the same bits: finite numbers as they are, others by class ("nan", "inf").
std::string to_json(const Incident& incident);
/// Throws IoError on text that is not an incident.
Incident incident_from_json(const std::string& text);
/// Throws IoError when the file cannot be read or is no incident.
Incident read_incident(const std::filesystem::path& file);

/// The incidents of a directory by attempt. Throws IoError when it cannot be read.
std::vector<std::filesystem::path> list_incidents(const std::filesystem::path& directory);

/// Writes `directory`/incident-<attempt, 12 digits>.json (with -2, -3, ... where that exists: a
/// resumed run may come to the same attempt) and the arrays beside it as .npy; each under a
/// temporary name first. Local. Sets file and array_files, or write_error; throws nothing.
void write_incident(Incident& incident, const std::vector<NamedArray>& arrays,
                    const std::filesystem::path& directory) noexcept;

}  // namespace tutti
