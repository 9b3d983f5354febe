# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Run by CTest: installs BUILD into an empty prefix, then configures, builds and runs the consumer.
file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)

function(check)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(status)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "the consumer test failed (exit status ${status}); run\n  ${command}")
  endif()
endfunction()

check(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
if(NOT EXISTS ${prefix}/share/tutti/slurm/train.sbatch)
  message(FATAL_ERROR "the Slurm templates are not installed (share/tutti/slurm is missing)")
endif()
check(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/build -G ${GENERATOR}
  -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${C_COMPILER}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
check(${CMAKE_COMMAND} --build ${WORK}/build)
check(${MPIRUN} 2 ${WORK}/build/consumer)
