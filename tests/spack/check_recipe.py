#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the Spack recipe without Spack: stand-in modules record its directives, which are held
against the project's CMakeLists.txt.

usage: check_recipe.py PACKAGE_PY CMAKELISTS
"""

import contextlib
import importlib.util
import re
import sys
import types

directives = []  # (name, arguments, keywords); `when` holds all enclosing conditions
conditions = []
ARCHITECTURES = ("70", "80", "86", "89", "90", "90a", "100", "120")


def directive(name):
    def record(*arguments, **keywords):
        own = [keywords["when"]] if keywords.get("when") else []
        keywords["when"] = " ".join(conditions + own) or None
        directives.append((name, arguments, keywords))
        return lambda function: function  # some are decorators

    return record


@contextlib.contextmanager
def when(condition):
    conditions.append(condition)
    yield
    conditions.pop()


def module(name, **names):
    made = types.ModuleType(name)
    made.__dict__.update(names)
    made.__path__ = []
    sys.modules[name] = made


def load(path):
    """The recipe's class, its directives being recorded on the way."""
    package = {
        name: directive(name)
        for name in "version variant depends_on conflicts requires license run_after".split()
    }
    for name in ("Executable", "SkipTest", "cache_extra_test_sources", "check_outputs",
                 "join_path"):
        package[name] = None
    package["when"] = when
    module("spack")
    module("spack.package", **package)
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        module(name)
    cmake = type("CMakePackage", (), {})
    cuda = type("CudaPackage", (), {"cuda_arch_values": ARCHITECTURES})
    module("spack_repo.builtin.build_systems.cmake", CMakePackage=cmake)
    module("spack_repo.builtin.build_systems.cuda", CudaPackage=cuda)
    spec = importlib.util.spec_from_file_location("recipe", path)
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe.Tutti


def main():
    path, cmakelists = sys.argv[1:]
    recipe = load(path)
    project = open(cmakelists).read()
    text = open(path).read()
    dependencies = [(a[0], k["when"]) for n, a, k in directives if n == "depends_on"]
    variants = {a[0]: k for n, a, k in directives if n == "variant"}
    versions = [a[0] for n, a, k in directives if n == "version"]
    options = set(re.findall(r"^\s*(?:cmake_dependent_)?option\((\w+)", project, re.M))
    used = set(re.findall(r'"(TUTTI_\w+)"', text))
    current = re.search(r"project\(\w+\s+VERSION\s+([\d.]+)", project).group(1)
    mapped = set(re.findall(r'define_from_variant\("\w+", "(\w+)"\)', text))
    tests = [f for n, f in vars(recipe).items() if n.startswith("test_") and callable(f)]
    checks = {
        f"the project's version {current} is listed": current in versions,
        "every TUTTI_ option of the recipe is one of the project": used <= options,
        "every option of the project for users is set": options
        - used
        <= {"TUTTI_ENABLE_BENCHMARKS", "TUTTI_WARNINGS_AS_ERRORS"},
        "every variant that is mapped exists": mapped <= set(variants) | {"cuda"},
        "kokkos gets every cuda_arch": all(
            (f"kokkos+cuda cuda_arch={arch}", f"+cuda cuda_arch={arch}") in dependencies
            for arch in ARCHITECTURES
        ),
        "languages are dependencies": {("c", None), ("cxx", None), ("fortran", "+fortran")}
        <= set(dependencies),
        "HDF5 is parallel": any(d.startswith("hdf5") and "+mpi" in d for d, _ in dependencies),
        "MPI is a dependency": ("mpi", None) in dependencies,
        "each stand-alone test has a title": bool(tests) and all(f.__doc__ for f in tests),
    }
    for check, holds in checks.items():
        print("ok    " if holds else "FAILED", check)
    sys.exit(not all(checks.values()))


if __name__ == "__main__":
    main()
