// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Splitting the caller's communicator into axes and memory domains. What travels over them is
// elsewhere.
#include "tutti/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "rank_label.hpp"
#include "tutti/error.hpp"
#include "tutti/mpi_check.hpp"

namespace tutti {
namespace {

void return_errors(MPI_Comm communicator)
{
  check_mpi(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MPI_Comm split(MPI_Comm communicator, int color, int key)
{
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(communicator, color, key, &part), "MPI_Comm_split");
  return_errors(part);
  return part;
}

MPI_Comm split_by_memory(MPI_Comm communicator, int key)
{
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  return_errors(node);
  return node;
}

void free_communicator(MPI_Comm& communicator)
{
  if (communicator != MPI_COMM_NULL) {
    check_mpi(MPI_Comm_free(&communicator), "MPI_Comm_free");
  }
}

// Why a job of `size` ranks cannot take these options; empty if it can. The same on all ranks: it
// reads nothing but what the ranks have agreed on.
std::string refusal(long long least[3], long long greatest[3], int size)
{
  const char* const option[] = {"the model-parallel degree", "whether to share memory",
                                "the size of a memory domain"};
  for (int i = 0; i < 3; ++i) {
    if (least[i] != greatest[i]) {
      return fmt::format(
          "the ranks disagree on {} (some have {}, some {}); give all ranks the same options",
          option[i], least[i], greatest[i]);
    }
  }
  const long long degree = least[0];
  if (degree < 1) {
    return fmt::format(
        "a model-parallel degree of {} is not possible (it is less than 1); set --model-parallel 1",
        degree);
  }
  if (size % degree != 0) {
    const long long below = size / degree * degree;
    const std::string counts =
        below == 0 ? fmt::format("{}", degree) : fmt::format("{} or {}", below, below + degree);
    return fmt::format(
        "{} rank{} cannot form a model-parallel degree of {} ({} is not a multiple of {}); start "
        "{} ranks, or set --model-parallel 1",
        size, size == 1 ? "" : "s", degree, size, degree, counts);
  }
  if (least[2] < 0) {
    return fmt::format("a memory domain of {} ranks is not possible (it is negative); use 0",
                       least[2]);
  }
  return {};
}

}  // namespace

Topology::Topology(MPI_Comm communicator, TopologyOptions options)
    : model_parallel_(options.model_parallel), shared_memory_(options.shared_memory)
{
  check_mpi(MPI_Comm_dup(communicator, &world_), "MPI_Comm_dup");
  return_errors(world_);
  check_mpi(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(world_, &size_), "MPI_Comm_size");

  // One reduction gives the minimum and, by its negative, the maximum.
  const long long mine[3] = {options.model_parallel, options.shared_memory ? 1 : 0,
                             options.domain_size};
  const long long both[6] = {mine[0], mine[1], mine[2], -mine[0], -mine[1], -mine[2]};
  long long least[6];
  check_mpi(MPI_Allreduce(both, least, 6, MPI_LONG_LONG, MPI_MIN, world_), "MPI_Allreduce");
  long long greatest[3] = {-least[3], -least[4], -least[5]};
  if (const std::string reason = refusal(least, greatest, size_); !reason.empty()) {
    free_communicator(world_);
    throw InvalidArgument(reason);
  }
  detail::label_rank(rank_);

  data_axis_ = split(world_, model_rank(), data_rank());
  model_axis_ = split(world_, data_rank(), model_rank());
  if (!options.shared_memory) {
    domain_ = split(world_, rank_, 0);
  } else {
    domain_ = split_by_memory(world_, rank_);
    if (options.domain_size > 0) {
      int place = 0;
      check_mpi(MPI_Comm_rank(domain_, &place), "MPI_Comm_rank");
      MPI_Comm part = split(domain_, place / options.domain_size, place);
      free_communicator(domain_);
      domain_ = part;
    }
  }

  // A domain is known by its lowest world rank.
  int first = rank_;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, domain_), "MPI_Bcast");
  std::vector<int> first_of(static_cast<std::size_t>(size_));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, first_of.data(), 1, MPI_INT, world_),
            "MPI_Allgather");
  domain_index_.resize(first_of.size());
  for (int r = 0; r < size_; ++r) {
    if (first_of[r] == r) {
      domain_index_[r] = static_cast<int>(domains_.size());
      domains_.emplace_back();
    } else {
      domain_index_[r] = domain_index_[first_of[r]];
    }
    domains_[domain_index_[r]].push_back(r);
  }
}

// Freeing a communicator is collective, and a destructor may run on one rank alone.
Topology::~Topology()
{
  if (world_ != MPI_COMM_NULL) detail::report_left_open("a Topology", "close()");
}

void Topology::close()
{
  free_communicator(domain_);
  free_communicator(model_axis_);
  free_communicator(data_axis_);
  free_communicator(world_);
}

}  // namespace tutti
