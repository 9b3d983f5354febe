#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Makes of an installed header tree of Kokkos 5.2 (OpenMP build) a CMake package of Kokkos with
# CUDA + Serial to compile against, not to link: configuration headers in OUT/include,
# OUT/KokkosConfig.cmake, and OUT/nvcc_wrapper, a compiler that does what Kokkos's own does with the
# options of this project.
# usage: kokkos_cuda_package.sh KOKKOS_INCLUDE_DIR OUT NVCC
# The architectures are those of NVCC_GATE_FLAGS, which are added to each call of nvcc.
set -eu
K=$(cd "${1:?include dir that holds KokkosCore_config.h}" && pwd)
mkdir -p "${2:?folder to write}"
PACKAGE=$(cd "$2" && pwd)
NVCC=${3:?nvcc}
OUT=$PACKAGE/include
mkdir -p "$OUT/desul/atomics"

on() { printf 's@/\\* #undef %s \\*/@#define %s@\n' "$1" "$1"; }
{
  on KOKKOS_ENABLE_CUDA; on KOKKOS_ENABLE_SERIAL; on KOKKOS_ARCH_HOPPER; on KOKKOS_ARCH_HOPPER90
  echo 's@^#define KOKKOS_ENABLE_OPENMP$@@'
} > "$OUT/on.sed"
sed -f "$OUT/on.sed" "$K/KokkosCore_config.h" > "$OUT/KokkosCore_config.h"
on DESUL_ATOMICS_ENABLE_CUDA > "$OUT/on.sed"
sed -f "$OUT/on.sed" "$K/desul/atomics/Config.hpp" > "$OUT/desul/atomics/Config.hpp"
rm "$OUT/on.sed"

# backend NAME GUARD HEADER ...
backend()
{
  file=$OUT/KokkosCore_Config_$1Backend.hpp
  printf '#ifndef %s\n#define %s\n' "$2" "$2" > "$file"
  shift 2
  printf '#include <%s>\n' "$@" >> "$file"
  printf '#endif\n' >> "$file"
}
backend Declare KOKKOS_DECLARE_HPP_ decl/Kokkos_Declare_SERIAL.hpp decl/Kokkos_Declare_CUDA.hpp
backend Fwd KOKKOS_FWD_HPP_ fwd/Kokkos_Fwd_SERIAL.hpp fwd/Kokkos_Fwd_CUDA.hpp
backend Setup KOKKOS_SETUP_HPP_ setup/Kokkos_Setup_Cuda.hpp

ar qc "$PACKAGE/libkokkoscore.a"
cat > "$PACKAGE/KokkosConfig.cmake" << END
add_library(Kokkos::kokkoscore STATIC IMPORTED)
set_target_properties(Kokkos::kokkoscore PROPERTIES
  IMPORTED_LOCATION "$PACKAGE/libkokkoscore.a"
  INTERFACE_INCLUDE_DIRECTORIES "$OUT;$K"
  INTERFACE_COMPILE_OPTIONS "--extended-lambda;--expt-relaxed-constexpr")
add_library(Kokkos::kokkos INTERFACE IMPORTED)
set_target_properties(Kokkos::kokkos PROPERTIES INTERFACE_LINK_LIBRARIES Kokkos::kokkoscore)
END

# Host code, and whatever CMake asks the compiler itself, goes to the host compiler.
cat > "$PACKAGE/nvcc_wrapper" << 'END'
#!/bin/bash
host_only=${NVCC_WRAPPER_HOST_ONLY:-}
[ -n "$host_only" ] || case " $* " in *" --host-only "* | *" -E "*) host_only=1 ;; esac
case " $* " in *" -c "*) ;; *) host_only=1 ;; esac
args=()
while [ $# -gt 0 ]; do
  case $1 in
    --host-only) ;;
    --extended-lambda | --expt-relaxed-constexpr | -fmad=* | -ftz=* | -prec-*)
      [ -n "$host_only" ] || args+=("$1") ;;
    -I* | -D* | -U* | -c | -O[0-3] | -g | -std=* | *.cpp) args+=("$1") ;;
    -o | -isystem | -MF | -MT) args+=("$1" "$2"); shift ;;
    -MD) args+=("$1") ;;
    *) if [ -n "$host_only" ]; then args+=("$1"); else args+=(-Xcompiler "$1"); fi ;;
  esac
  shift
done
[ -z "$host_only" ] || exec "${NVCC_WRAPPER_DEFAULT_COMPILER:-g++}" "${args[@]}"
END
echo "exec $NVCC -x cu \$NVCC_GATE_FLAGS \"\${args[@]}\"" >> "$PACKAGE/nvcc_wrapper"
chmod +x "$PACKAGE/nvcc_wrapper"
