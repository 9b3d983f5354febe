// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a participant says of itself where it has nothing better to say.
#include "tutti/participant.hpp"

#include "tutti/incident.hpp"

namespace tutti {

OffenderDetail Participant::detail(const Offender&) { return {}; }
PrecisionNames Participant::precisions(std::size_t) const { return {}; }

}  // namespace tutti
