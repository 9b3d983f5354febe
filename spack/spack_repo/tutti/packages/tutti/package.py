# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Tutti(CMakePackage, CudaPackage):
    """MPI-native optimizer runtime: one logical update has one outcome across all its participants.
    Mixed-precision sharded Adam, consensus on every update over data- and model-parallel ranks,
    parallel HDF5 checkpoints."""

    # The public address is filled in at the first release (CONTRIBUTING.md); until
    # then the environments in spack/environments build the clone that they lie in.
    homepage = "https://tutti.example.org"
    git = "https://tutti.example.org/tutti.git"

    license("Apache-2.0 WITH LLVM-exception")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("apps", default=True, description="Build the tutti command and the reference trainer")
    variant("fortran", default=False, description="Build the Fortran module")
    variant("nccl", default=False, when="+cuda", description="Exchange between GPUs by NCCL")
    variant("openmp", default=True, description="Run the portable host kernels with OpenMP")
    variant("shared", default=True, description="Build shared libraries")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.22:", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10:+mpi")
    depends_on("kokkos@3.4:")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("kokkos@4.7.1:", when="+cuda ^cuda@13:")
    depends_on("kokkos+wrapper", when="+cuda")
    requires("^kokkos+cuda_lambda", when="+cuda ^kokkos@:4")
    for _arch in CudaPackage.cuda_arch_values:
        depends_on(f"kokkos+cuda cuda_arch={_arch}", when=f"+cuda cuda_arch={_arch}")
        depends_on(f"nccl+cuda cuda_arch={_arch}", when=f"+nccl cuda_arch={_arch}")
    conflicts(
        "+cuda", when="cuda_arch=none", msg="Kokkos needs one cuda_arch, e.g. cuda_arch=90"
    )
    conflicts("%gcc@:11", msg="tutti is C++20: GCC 12 or newer")

    depends_on("nccl@2.10:", when="+nccl")
    depends_on("fmt@9:")
    depends_on("highway@1:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    with when("+apps"):
        depends_on("cli11@2.1:")
        depends_on("tomlplusplus@3:")
        depends_on("openblas")
        depends_on("zlib-api")
    depends_on("catch2@2.13:", type="test")
    depends_on("python@3.9:", type="test")

    # Stand-alone tests build the installed examples.
    test_requires_compiler = True

    def cmake_args(self):
        args = [
            self.define_from_variant("TUTTI_ENABLE_CUDA", "cuda"),
            self.define_from_variant("TUTTI_ENABLE_NCCL", "nccl"),
            self.define_from_variant("TUTTI_ENABLE_FORTRAN", "fortran"),
            self.define_from_variant("TUTTI_ENABLE_APPS", "apps"),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define("TUTTI_ENABLE_TESTS", self.run_tests),
            self.define("CMAKE_C_COMPILER", self.spec["mpi"].mpicc),
            self.define("CMAKE_CXX_COMPILER", self.spec["mpi"].mpicxx),
        ]
        if self.spec.satisfies("+fortran"):
            args.append(self.define("CMAKE_Fortran_COMPILER", self.spec["mpi"].mpifc))
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CXX_COMPILER", self["kokkos"].kokkos_cxx))
        return args

    @run_after("install")
    def keep_examples(self):
        cache_extra_test_sources(self, ["apps/examples"])

    def _build_example(self, language, *more):
        """Builds an installed example against this tutti; returns its folder."""
        source = join_path(self.test_suite.current_test_cache_dir, "apps", "examples", language)
        build = join_path(self.test_suite.stage, f"build-{language}")
        cmake = Executable(self.spec["cmake"].prefix.bin.cmake)
        cmake("-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
              f"-DCMAKE_C_COMPILER={self.spec['mpi'].mpicc}",
              f"-DCMAKE_CXX_COMPILER={self.spec['mpi'].mpicxx}", *more)
        cmake("--build", build)
        return build

    def test_c(self):
        """the C example builds and learns"""
        build = self._build_example("c")
        out = Executable(join_path(build, "minimal"))(output=str.split, error=str.split)
        check_outputs(["step 100: loss 0.0000"], out)

    def test_cxx(self):
        """the C++ example builds and learns"""
        build = self._build_example("cpp")
        out = Executable(join_path(build, "minimal"))(output=str.split, error=str.split)
        check_outputs(["step 100"], out)

    def test_fortran(self):
        """the Fortran solver builds and learns its own time step"""
        if self.spec.satisfies("~fortran"):
            raise SkipTest("built without the Fortran module")
        build = self._build_example(
            "fortran", f"-DCMAKE_Fortran_COMPILER={self.spec['mpi'].mpifc}"
        )
        Executable(join_path(build, "heat"))("20")

    def test_version(self):
        """the command says its version"""
        if self.spec.satisfies("~apps"):
            raise SkipTest("built without the command")
        out = Executable(self.prefix.bin.tutti)("--version", output=str.split, error=str.split)
        check_outputs(["tutti "], out)
