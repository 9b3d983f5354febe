// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs the bodies of block_bodies.hpp on a Kokkos execution space: one team a block, 32 vector
// lanes in it. On CUDA the lanes are a warp, on a host one thread runs them one after the other;
// the results are combined in the same fixed tree on both, without any Kokkos reducer.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <string>

#include "block_bodies.hpp"
#include "tutti/fp_environment.hpp"

namespace tutti::detail {

template <class Space, class Body>
struct BlockFunctor {
  using Policy = Kokkos::TeamPolicy<Space>;
  using Member = typename Policy::member_type;
  using Lane = typename Body::Lane;
  using Lanes = Kokkos::View<Lane*, typename Space::scratch_memory_space,
                             Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  Body body;

  KOKKOS_FUNCTION void operator()(const Member& member) const
  {
#if !defined(__CUDA_ARCH__)
    // In here, not around the launch: a threaded host space has one control register a thread.
    const FloatingPointGuard guard;
#endif
    const std::size_t block = static_cast<std::size_t>(member.league_rank());
    const Lanes seen(member.team_scratch(0), lanes);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, lanes),
                         [&](const int lane) { seen(lane) = body.run(block, lane); });
    for (int half = lanes / 2; half > 0; half /= 2) {
      member.team_barrier();
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, half),
                           [&](const int lane) { seen(lane).combine(seen(lane + half)); });
    }
    member.team_barrier();
    Kokkos::single(Kokkos::PerThread(member), [&]() { body.finish(block, seen(0)); });
  }
};

/// Runs `body` on `blocks` blocks and waits for it.
template <class Space, class Body>
void for_each_block(const std::string& label, std::size_t blocks, const Body& body)
{
  if (blocks == 0) return;
  using Functor = BlockFunctor<Space, Body>;
  const Space space;
  typename Functor::Policy policy(space, static_cast<int>(blocks), 1, lanes);
  policy.set_scratch_size(0, Kokkos::PerTeam(Functor::Lanes::shmem_size(lanes)));
  Kokkos::parallel_for(label, policy, Functor{body});
  space.fence();
}

}  // namespace tutti::detail
