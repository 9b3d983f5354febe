# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads a checkpoint by h5py and h5dump and compares its views with the files that the test wrote.

usage: views.py CHECKPOINT DIRECTORY README
"""
import json
import os
import subprocess
import sys

import h5py
import numpy


def exported(checkpoint, directory, readme):
    """What the recipe of the README makes of it."""
    with open(readme, encoding="utf-8") as text:
        blocks = text.read().split("```python\n")[1:]
    code = next(block.split("```")[0] for block in blocks if "def export" in block)
    names = {}
    exec(code, names)
    path = os.path.join(directory, "exported.npz")
    names["export"](checkpoint, path)
    return numpy.load(path)


def compare_dump(checkpoint, view, expected, directory):
    dumped = os.path.join(directory, "dumped")
    command = ["h5dump", "-p", "-d", view, "-b", "LE", "-o", dumped, checkpoint]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "VIRTUAL" in said, said
    values = numpy.fromfile(dumped, dtype="<u4")
    assert (values == expected).all(), f"h5dump sees other values in {view}"


def main(checkpoint, directory, readme):
    with h5py.File(checkpoint, "r") as file:
        assert file.attrs["format_version"] == 1
        control = json.loads(file["control_state"][()])
        assert control["step"] == 42, control
        assert json.loads(file["configuration"][()])["word"] == "Größe"
        manifest = json.loads(file["manifest"][()])
        assert [o["name"] for o in manifest["optimizers"]] == ["adam", "momentum/head"]
        assert json.loads(file["certificate"][()])["certificate"]["step"] == 42

        archive = exported(checkpoint, directory, readme)
        assert len(archive.files) == 9, archive.files
        compared = 0
        with open(os.path.join(directory, "expected"), encoding="utf-8") as lines:
            for line in lines:
                name, array, shape, flat = line.split()
                shape = tuple(int(n) for n in shape.split(",") if n)
                view = file[f"parameters/{name}/{array}"]
                assert view.is_virtual and view.shape == shape, (name, view.shape)
                expected = numpy.fromfile(os.path.join(directory, flat), dtype="<u4")
                values = numpy.ascontiguousarray(view[()]).view("<u4").ravel()
                assert (values == expected).all(), f"{name}/{array} has other values"
                compared += 1
                if array == "master":
                    compare_dump(checkpoint, view.name, expected, directory)
                if array == "master":
                    optimizer = "momentum/head" if name == "head" else "adam"
                    saved = archive[f"{optimizer}/{name}"]
                    assert saved.shape == (shape if name != "scalar" else ()), (name, saved.shape)
                    assert (saved.view("<u4").ravel() == expected).all(), f"{name} in the archive"
        assert compared == 8 * 4 + 2, compared


if __name__ == "__main__":
    main(*sys.argv[1:])
