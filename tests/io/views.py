# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads a checkpoint by h5py and compares its views with the files that the test wrote.

usage: views.py CHECKPOINT DIRECTORY
"""
import json
import os
import sys

import h5py
import numpy


def main(checkpoint, directory):
    with h5py.File(checkpoint, "r") as file:
        assert file.attrs["format_version"] == 1
        control = json.loads(file["control_state"][()])
        assert control["step"] == 42, control
        assert json.loads(file["configuration"][()])["word"] == "Größe"
        manifest = json.loads(file["manifest"][()])
        assert [o["name"] for o in manifest["optimizers"]] == ["adam", "momentum/head"]
        assert json.loads(file["certificate"][()])["certificate"]["step"] == 42

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
        assert compared == 8 * 4 + 2, compared


if __name__ == "__main__":
    main(*sys.argv[1:])
