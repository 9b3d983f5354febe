# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Writes OUTPUT with the git revision of SOURCE, and leaves it alone when it has not changed.
cmake_minimum_required(VERSION 3.22)
execute_process(COMMAND git describe --always --dirty --abbrev=12
  WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  RESULT_VARIABLE failed)
if(failed OR revision STREQUAL "")
  set(revision "no git revision")
else()
  set(revision "git ${revision}")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
namespace tutti::apps {
inline constexpr const char* tutti_revision = \"@revision@\";
}
" @ONLY)
