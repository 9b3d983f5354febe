#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the real command through tests/mpirun and checks how it ends, what it writes, and that runs
which must be equal are equal. One group of cases a call; small synthetic images, but for the main
job.

usage: system_test.py --tutti PROGRAM --mpirun SCRIPT GROUP
"""

import argparse
import gzip
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

LIMIT = 60  # seconds for any one run: a hang is a failure
SMALL = ["--hidden", "24", "--batch", "32", "--progress-every", "1000"]


class Result:
    """One run: exit code, what it said, its summary, and the log of each rank."""

    def __init__(self, code, out, err, folder, ranks):
        self.code, self.out, self.err = code, out, err
        self.folder = folder
        summary = folder / "summary.json"
        self.summary = json.loads(summary.read_text()) if summary.exists() else None
        self.logs = []
        for rank in range(ranks):
            log = folder / f"log-{rank}.jsonl"
            self.logs.append(log.read_text().splitlines() if log.exists() else None)

    @property
    def log(self):
        return [json.loads(line) for line in self.logs[0]]

    @property
    def digest(self):
        return self.summary["state_digest"]


class Bench:
    """Runs commands in a scratch folder and counts what does not hold."""

    def __init__(self, tutti, mpirun, forge):
        self.tutti, self.mpirun, self.forge = map(os.path.abspath, (tutti, mpirun, forge))
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="tutti-system-"))
        self.failures = 0
        self.runs = 0
        self.limit = LIMIT
        self.data = self.scratch / "data"
        write_data(self.data)

    def check(self, holds, what, result=None):
        if holds:
            return
        self.failures += 1
        print(f"FAILED: {what}")
        if result is not None:
            print("  exit code", result.code)
            print("  stdout:", result.out.strip()[-1500:])
            print("  stderr:", result.err.strip()[-1500:])

    def command(self, words, ranks=None, environment=None, folder=None, through=None):
        """Runs words; ranks=None: without mpirun; through: a script that starts each rank."""
        self.runs += 1
        folder = folder or self.scratch / f"run-{self.runs}"
        folder.mkdir(exist_ok=True)
        line = [self.tutti] + [str(word) for word in words]
        if ranks is not None:
            line = [self.mpirun, str(ranks)] + ([str(through)] if through else []) + line
        plain = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
        plain.update(environment or {})
        try:
            done = subprocess.run(
                line, cwd=folder, env=plain, capture_output=True, text=True, timeout=self.limit
            )
            return Result(done.returncode, done.stdout, done.stderr, folder, ranks or 1)
        except subprocess.TimeoutExpired as late:
            text = lambda b: b.decode(errors="replace") if isinstance(b, bytes) else (b or "")
            return Result("hang", text(late.stdout), text(late.stderr), folder, ranks or 1)

    def train(self, ranks, *words, environment=None, data=None, base=SMALL):
        line = [
            "train",
            "--data",
            data or self.data,
            *base,
            "--summary",
            "summary.json",
            "--log",
            "log-{rank}.jsonl",
        ]
        return self.command(line + list(words), ranks, environment)

    def train_ok(self, ranks, *words, **more):
        result = self.train(ranks, *words, **more)
        self.check(
            result.code == 0 and result.summary is not None,
            f"{words} on {ranks} ranks ends well",
            result,
        )
        self.check_one_outcome(result, words)
        return result

    def check_one_outcome(self, result, what):
        """Every rank wrote the same line for every attempt."""
        self.check(
            all(log == result.logs[0] and log for log in result.logs),
            f"{what}: every rank logged the same outcomes",
            result,
        )

    def check_refusal(self, result, code, words, what):
        """One message, which holds all words; the exit code; no hang."""
        said = [line for line in result.err.splitlines() if line.startswith("tutti: ")]
        self.check(result.code == code, f"{what}: exit code {code}", result)
        self.check(len(said) == 1, f"{what}: one message", result)
        for word in words:
            self.check(word in "".join(said), f"{what}: the message says '{word}'", result)
        for part in (" (", "); "):
            self.check(part in "".join(said), f"{what}: problem (reason); suggestion", result)
        self.check("HDF5-DIAG" not in result.err, f"{what}: no library speaks", result)


class Background:
    """A run of `tutti train` that goes on while the test looks at it and signals its ranks."""

    def __init__(self, bench, ranks, *words, environment=None, base=SMALL):
        bench.runs += 1
        self.bench, self.ranks = bench, ranks
        self.folder = bench.scratch / f"run-{bench.runs}"
        self.folder.mkdir()
        through = self.folder / "note_pid.sh"
        through.write_text(
            '#!/bin/sh\necho $$ >"pid-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}.new"\n'
            'mv "pid-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}.new"'
            ' "pid-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}"\nexec "$@"\n'
        )
        through.chmod(0o755)
        line = [bench.mpirun, str(ranks), str(through), bench.tutti, "train"]
        line += ["--data", str(bench.data), *base, "--summary", "summary.json"]
        line += ["--log", "log-{rank}.jsonl", *[str(word) for word in words]]
        plain = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
        plain.update(environment or {})
        self.out, self.err = open(self.folder / "out", "w"), open(self.folder / "err", "w")
        self.process = subprocess.Popen(
            line, cwd=self.folder, env=plain, stdout=self.out, stderr=self.err
        )

    def attempts(self):
        log = self.folder / "log-0.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def wait_for_attempts(self, count):
        late = time.monotonic() + LIMIT
        while self.attempts() < count and self.process.poll() is None and time.monotonic() < late:
            time.sleep(0.02)
        self.bench.check(self.attempts() >= count, f"the run comes to attempt {count}")

    def signal(self, number, *ranks):
        for rank in ranks or range(self.ranks):
            try:
                os.kill(int((self.folder / f"pid-{rank}").read_text()), number)
            except ProcessLookupError:
                pass  # it has ended

    def end(self, storm=()):
        """Waits for the end; storm: signals that all ranks get again and again until then."""
        late = time.monotonic() + LIMIT
        while self.process.poll() is None and time.monotonic() < late:
            for number in storm:
                self.signal(number)
            time.sleep(0.02)
        code = self.process.poll()
        if code is None:
            self.process.kill()
            self.process.wait()
            code = "hang"
        self.out.close()
        self.err.close()
        read = lambda name: (self.folder / name).read_text()
        return Result(code, read("out"), read("err"), self.folder, self.ranks)


def idx(path, kind, extents, payload):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(
            struct.pack(">HBB", 0, 8, kind)
            + b"".join(struct.pack(">I", n) for n in extents)
            + payload
        )


def write_data(folder, train=200, test=60):
    """Images of 12 x 12 noisy pixels with a bright bar whose place is the class."""
    folder.mkdir(exist_ok=True)
    noise = random.Random(4)
    for part, count in (("train", train), ("t10k", test)):
        labels = bytes(noise.randrange(10) for _ in range(count))
        pixels = bytearray()
        for label in labels:
            image = bytearray(noise.randrange(80) for _ in range(144))
            for j in range(12):
                image[12 * label + j] = 200
            pixels += image
        idx(folder / f"{part}-images-idx3-ubyte.gz", 3, (count, 12, 12), bytes(pixels))
        idx(folder / f"{part}-labels-idx1-ubyte.gz", 1, (count,), labels)


# --- groups ------------------------------------------------------------


def command_line(t):
    for words, wanted in (
        (["--version"], "tutti "),
        (["--help"], "train"),
        (["train", "--help"], "--max-norm"),
        (["info"], "HDF5"),
        (["bench", "step", "--help"], "--elements"),
        (["bench", "checkpoint", "--help"], "--directory"),
    ):
        alone = t.command(words)
        t.check(alone.code == 0 and wanted in alone.out, f"{words} without mpirun", alone)
        many = t.command(words, ranks=3)
        t.check(
            many.code == 0 and many.out == alone.out, f"{words} says the same once on 3 ranks", many
        )
    for words in ([], ["trian"], ["bench"], ["train", "extra"]):
        t.check_refusal(t.command(words), 2, [], f"{words}")
    result = t.command(["trian"], ranks=2)
    t.check_refusal(result, 2, ["did you mean 'train'?"], "a misspelt command on 2 ranks")
    # What no command takes is refused by each, before anything is done.
    for words, said in (
        (["checkpoint", "ls", t.scratch, "--jsno"], "did you mean 'json'?"),
        (["checkpoint", "verify", "x", "--wat"], "tutti checkpoint verify has none"),
        (["checkpoint", "--json", "ls", t.scratch], "unexpected argument '--json'"),
        (["incident", "ls", t.scratch, "--json"], "tutti incident ls has none"),
        (["incident", "replay", "x", "--most-steps", "-1"], "no whole number from 0 up"),
        (["info", "more"], "unexpected argument 'more'"),
        (["drill", "--secnds", "5"], "did you mean 'seconds'?"),
        (["drill", "--seconds", "nan"], "no number above 0"),
        (["bench", "step", "--", "more"], "unexpected argument 'more'"),
        (["train", "--", "--steps", "3"], "unexpected argument '--steps'"),
        (["train", "--resume", ""], "resume = '' is refused"),
        (["train", "--checkpoint-dir", os.fsdecode(b"bad\xff")], "its value is not UTF-8"),
    ):
        t.check_refusal(t.command(words), 2, [said], f"{words}")

    # An instruction set that does not exist, also where MPI is never started.
    wrong = {"TUTTI_SIMD": "avx9"}
    t.check_refusal(t.command(["info"], environment=wrong), 2, ["avx9"], "info, unknown TUTTI_SIMD")
    result = t.train(2, "--steps", "1", environment=wrong)
    t.check_refusal(result, 2, ["avx9"], "train, unknown TUTTI_SIMD")

    # flag > environment > file > default, as the run shows it
    config = t.scratch / "run.toml"
    config.write_text("steps = 2\nbatch = 40\nprecision = 'fp32'\n")
    base = ["--hidden", "8"]
    result = t.train_ok(2, "--config", config, base=base)
    t.check(
        result.summary["steps"] == 2 and result.log[0]["samples"] == 40,
        "a file's values are used",
        result,
    )
    result = t.train_ok(
        2,
        "--config",
        config,
        "--batch",
        "50",
        base=base,
        environment={"TUTTI_STEPS": "3", "TUTTI_BATCH": "45"},
    )
    t.check(
        result.summary["steps"] == 3 and result.log[0]["samples"] == 50,
        "flag > environment > file",
        result,
    )
    result = t.train_ok(1, "--steps", "4", "--log-format", "json", "--progress-every", "1")
    t.check(
        all(json.loads(line) for line in result.err.splitlines()),
        "--log-format json: an object a line",
        result,
    )


def bad_input(t):
    def refused(what, code, words, *flags, ranks=2, data=None, environment=None):
        result = t.train(ranks, *flags, data=data, environment=environment)
        t.check_refusal(result, code, words, what)
        t.check(result.summary is None, f"{what}: nothing is written", result)

    refused("unknown flag", 2, ["precison", "did you mean 'precision'?"], "--precison", "fp16")
    refused("bad precision", 2, ["fp8", "fp16, bf16, fp32"], "--precision", "fp8")
    refused("negative rate", 2, ["lr = '-0.1'"], "--lr", "-0.1")
    refused("a value is missing", 2, [], "--steps")
    refused("indivisible ranks", 2, ["model-parallel = 2", "(3)"], "--model-parallel", "2", ranks=3)
    refused(
        "an axis without owner",
        2,
        ["without an owner"],
        "--model-parallel",
        "2",
        "--rank-weights",
        "0,1,0,1",
        ranks=4,
    )
    refused("a weight too few", 2, ["3 entries"], "--rank-weights", "1,1,1", ranks=4)
    refused("bad value in the environment", 2, ["TUTTI_SEED"], environment={"TUTTI_SEED": "x"})
    refused("fault of an unknown kind", 2, ["meteor"], "--fault", "meteor:step=1,rank=0")
    if "CUDA            not built in" in t.command(["info"]).out:
        refused("no CUDA in this build", 2, ["device", "host"], "--device", "cuda")
    refused("no checkpoint", 2, ["step-*.h5"], "--checkpoint-dir", "none", "--resume", "latest")
    refused("no such checkpoint", 2, ["missing.h5"], "--resume", "missing.h5")
    refused("log in a missing folder", 2, ["no/log"], "--log", "no/log.jsonl")
    for text, words in (
        ("bacth = 3\n", [":1", "did you mean 'batch'?"]),
        ("batch = 'x'\n", ["integer expected"]),
        ("steps = 3\nlr = -1\n", [":2", "lr"]),
        ("batch = = 3\n", [":1", "TOML"]),
    ):
        config = t.scratch / "bad.toml"
        config.write_text(text)
        refused(f"file {text!r}", 2, ["bad.toml"] + words, "--config", config, ranks=3)
    refused("missing file", 2, ["nowhere.toml"], "--config", "nowhere.toml")
    refused(
        "missing data", 2, ["train-images", "dataset-fashion-mnist"], data=t.scratch / "nothing"
    )

    for name, damage in (
        ("truncated", lambda b: b[: len(b) // 2]),
        ("no end", lambda b: b[:-6]),
        ("flipped", lambda b: b[:100] + bytes([b[100] ^ 0x40]) + b[101:]),
        ("not gzip and no IDX", lambda b: b"P5 12 12 255\n" + b"x" * 9000),
    ):
        folder = t.scratch / f"damaged-{name.split()[0]}"
        write_data(folder)
        file = folder / "t10k-images-idx3-ubyte.gz"
        file.write_bytes(damage(file.read_bytes()))
        refused(f"damaged data: {name}", 1, [str(file), "damaged"], data=folder, ranks=3)

    # Ranks that were told different things by their environment, as on unlike nodes.
    for rank, setting, words in (
        (1, "TUTTI_LR=0.5", ["rank 1", "lr"]),
        (2, "TUTTI_LR=fast", ["rank 2", "TUTTI_LR"]),
    ):
        folder = t.scratch / f"mixed-{rank}"
        folder.mkdir()
        script = folder / "mixed.sh"
        script.write_text(
            f'#!/bin/sh\n[ "${{OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}" = {rank} ] && export'
            f' {setting}\nexec "$@"\n'
        )
        script.chmod(0o755)
        result = t.command(
            ["train", "--data", t.data, *SMALL, "--steps", "2"], 3, folder=folder, through=script
        )
        t.check_refusal(result, 2, words, f"{setting} on rank {rank} alone")


def equal_digests(t):
    for precision in ("fp16", "bf16", "fp32"):
        base = [
            "--model-parallel",
            "2",
            "--steps",
            "9",
            "--precision",
            precision,
            "--max-norm",
            "0.5",
            "--warmup",
            "3",
        ]
        plain = t.train_ok(4, *base)
        same = {
            "in_place": ["--update", "in_place"],
            "messages": ["--shared-memory", "off"],
            "uneven weights": ["--rank-weights", "1,2,3,0.5"],
            "data-parallel rank 1 owns all": ["--rank-weights", "0,0,1,1"],
            "measured weights": ["--rank-weights", "auto"],
            "fp32 wire": ["--wire", "fp32"],
            "all of it": [
                "--update",
                "in_place",
                "--shared-memory",
                "off",
                "--rank-weights",
                "1,0,0,2",
            ],
        }
        for what, flags in same.items():
            other = t.train_ok(4, *base, *flags)
            t.check(other.digest == plain.digest, f"{precision}, {what}: equal bits", other)
            # Summed in fp32, micro-batches are looked at one by one: more is known of them.
            more = {"offender", "nonfinite", "message"} if what == "fp32 wire" else set()
            lines = [
                [{k: v for k, v in a.items() if k not in more} for a in r.log]
                for r in (plain, other)
            ]
            t.check(lines[0] == lines[1], f"{precision}, {what}: equal log", other)
        baseline = t.train_ok(4, *base, environment={"TUTTI_SIMD": "baseline"})
        t.check(
            baseline.digest == plain.digest,
            f"{precision}, baseline instructions: equal bits",
            baseline,
        )
        for flags in (["--seed", "2"], ["--lr", "0.002"]):
            other = t.train_ok(4, *base, *flags)
            t.check(
                other.digest != plain.digest, f"{precision}: {flags} makes another state", other
            )
    # One rank of two owns everything; several micro-batches; a moving average.
    base = [
        "--steps",
        "6",
        "--micro-batches",
        "3",
        "--ema",
        "0.9",
        "--optimizer",
        "adamw",
        "--weight-decay",
        "0.01",
    ]
    plain = t.train_ok(2, *base)
    for flags in (
        ["--rank-weights", "1,0"],
        ["--rank-weights", "0,1", "--shared-memory", "off"],
        ["--update", "in_place"],
    ):
        other = t.train_ok(2, *base, *flags)
        t.check(other.digest == plain.digest, f"2 ranks, {flags}: equal bits", other)
    # More data-parallel ranks than samples: some have none; and other degrees see the same samples.
    base = ["--steps", "5", "--precision", "fp32", "--batch", "3"]
    one = t.train_ok(1, *base)
    for ranks, model_parallel in ((5, 1), (6, 2), (3, 3)):
        other = t.train_ok(ranks, *base, "--model-parallel", model_parallel)
        close = all(
            a["window"] == b["window"] and abs(a["loss"] - b["loss"]) < 1e-4 * abs(a["loss"])
            for a, b in zip(one.log, other.log)
        )
        t.check(
            close and len(one.log) == len(other.log), f"{ranks} ranks see the samples of one", other
        )


def resume(t):
    base = [
        "--precision",
        "fp16",
        "--warmup",
        "5",
        "--schedule",
        "cosine",
        "--schedule-steps",
        "30",
        "--batch",
        "48",
    ]
    base += ["--init-scale", "524288", "--growth-interval", "4", "--ema", "0.9"]
    straight = t.train_ok(4, "--model-parallel", "2", *base, "--steps", "20")
    folder = t.scratch / "checkpoints"
    first = t.train_ok(
        4,
        "--model-parallel",
        "2",
        *base,
        "--steps",
        "11",
        "--checkpoint-dir",
        folder,
        "--checkpoint-every",
        "4",
    )
    files = sorted(p.name for p in folder.glob("step-*.h5"))
    t.check([int(name[5:-3]) for name in files] == [4, 8, 11], f"checkpoints {files}", first)
    t.check(
        not [p for p in folder.iterdir() if p.name.startswith(".")],
        "no temporary file is left",
        first,
    )

    def resumed(ranks, *flags):
        return t.train_ok(ranks, "--steps", "20", *flags, base=["--progress-every", "1000"])

    same = resumed(4, "--model-parallel", "2", "--resume", folder / files[-1])
    t.check(same.digest == straight.digest, "stopped and resumed equals straight through", same)
    t.check(
        straight.logs[0][-len(same.logs[0]) :] == same.logs[0],
        "the resumed log continues the other",
        same,
    )
    early = resumed(
        4,
        "--model-parallel",
        "2",
        "--resume",
        folder / files[0],
        "--rank-weights",
        "0,3,1,1",
        "--update",
        "in_place",
        "--shared-memory",
        "off",
    )
    t.check(
        early.digest == straight.digest,
        "from an earlier one, other weights and update: equal bits",
        early,
    )
    # Other degrees: the same samples, nearly the same values; fp16 may overflow elsewhere.
    for ranks, model_parallel in ((1, 1), (2, 2), (3, 1), (6, 3)):
        other = resumed(ranks, "--model-parallel", model_parallel, "--resume", folder / files[-1])
        windows = [
            [a["window"] for a in r.log if a["verdict"] == "commit" and a["step"] > 11]
            for r in (straight, other)
        ]
        t.check(
            len(windows[0]) == 9 and windows[0] == windows[1],
            f"{ranks} ranks go on with the same samples",
            other,
        )
        t.check(
            abs(other.summary["final_loss"] - straight.summary["final_loss"]) < 0.05,
            f"{ranks} ranks come to nearly the same loss",
            other,
        )
    again = resumed(4, "--model-parallel", "2", "--checkpoint-dir", folder, "--resume", "latest")
    t.check(again.digest == straight.digest, "latest is the last", again)
    nothing = t.train(3, "--resume", folder / "step-000000000020.h5", "--steps", "20", base=[])
    t.check(
        nothing.code == 0 and nothing.digest == straight.digest,
        "resuming at the last step, on 3 ranks, changes nothing",
        nothing,
    )

    contradiction = t.train(
        2, "--resume", "latest", "--checkpoint-dir", folder, "--hidden", "25", base=[]
    )
    t.check_refusal(contradiction, 2, ["hidden = 25", "24"], "another hidden size")
    contradiction = t.train(
        2, "--resume", "latest", "--checkpoint-dir", folder, "--seed", "5", base=[]
    )
    t.check_refusal(contradiction, 2, ["seed = 5"], "another seed")
    broken = t.scratch / "broken.h5"
    whole = (folder / files[-1]).read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    t.check_refusal(t.train(2, "--resume", broken, base=[]), 1, ["broken.h5"], "half a checkpoint")


def saves(t):
    """When a run saves, at once or in the background, what stays, and what a failed save does."""

    def names(folder):
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

    def steps(folder):
        return [int(name[5:-3]) for name in names(folder) if name.endswith(".h5")]

    base = [*SMALL, "--precision", "bf16", "--model-parallel", "2", "--steps", "12"]
    plain = t.train_ok(4, base=base)
    every = {}
    for mode, flags in {
        "at once": [],
        "by pwrite": ["--checkpoint-io", "skeleton"],
        "in the background": ["--checkpoint-async", "on"],
    }.items():
        folder = t.scratch / mode.replace(" ", "-")
        flags += ["--checkpoint-dir", folder, "--checkpoint-every", "3"]
        result = t.train_ok(4, *flags, base=base)
        t.check(result.digest == plain.digest, f"saving {mode} changes nothing", result)
        t.check(folder / "latest" in folder.iterdir(), f"{mode}: there is a pointer", result)
        t.check(
            not [n for n in names(folder) if n.startswith(".")], f"{mode}: nothing hidden", result
        )
        every[mode] = {n: (folder / n).read_bytes() for n in names(folder) if n.endswith(".h5")}
    first = every["at once"]
    t.check(len(first) == 4, f"a save every 3 of 12 steps: {list(first)}")
    t.check(every["by pwrite"] == first, "both write paths make the same files")
    # A save that is due while another one is in flight waits; each that is there is the same.
    late = every["in the background"]
    t.check("step-000000000012.h5" in late, "the end of the run waits for the last save")
    for name in set(late) & set(first):
        t.check(late[name] == first[name], f"{name} has the same bytes from the background")

    def stalled(*flags):
        folder = t.scratch / "stalled"
        fault = "stall:step=3,rank=1,phase=save_payload,seconds=2"
        words = ["--checkpoint-dir", folder, "--checkpoint-every", "3", "--fault", fault]
        return folder, t.train_ok(4, *words, *flags, base=base)

    folder, held = stalled("--checkpoint-async", "on")
    t.check(held.digest == plain.digest, "a stalled thread changes nothing", held)
    t.check(
        (folder / "step-000000000003.h5").read_bytes() == first["step-000000000003.h5"],
        "a stalled save holds its own step",
        held,
    )

    folder = t.scratch / "clock"
    clock = ["--checkpoint-minutes", "0.000001", "--checkpoint-keep", "2"]
    result = t.train_ok(4, "--checkpoint-dir", folder, *clock, base=base)
    t.check(steps(folder) == [11, 12], f"by the clock, two stay: {names(folder)}", result)

    # A failure on one rank is one message, the run's end or a warning, and does no harm.
    for phase in (
        "save_prepare",
        "save_payload",
        "save_sync",
        "save_complete",
        "save_publish",
        "save_pointer",
        "save_retain",
    ):
        background = phase in ("save_payload", "save_publish")
        rank = 3 if phase in ("save_prepare", "save_payload", "save_sync") else 0
        folder = t.scratch / phase
        words = ["--checkpoint-dir", folder, "--checkpoint-every", "3"]
        # The first background save begins where it is due; a later one may find that in flight.
        step = 3 if background else 6
        words += ["--fault", f"throw:step={step},rank={rank},phase={phase}"]
        words += ["--checkpoint-async", "on"] if background else []
        failed = t.train(4, *words, base=base)
        said = [line for line in failed.err.splitlines() if "planned exception" in line]
        t.check(failed.code == 1, f"a throw in {phase} ends the run", failed)
        t.check(len(said) == 1 and f"rank {rank}: " in said[0], f"{phase}: one message", failed)
        there = [3, 6] if phase in ("save_pointer", "save_retain") else [] if background else [3]
        t.check(steps(folder) == there, f"{phase} leaves {names(folder)}", failed)
        t.check(
            not [n for n in names(folder) if n.startswith(".")], f"{phase}: nothing hidden", failed
        )
        for name in names(folder):
            if name.endswith(".h5"):
                same = (folder / name).read_bytes() == first[name]
                t.check(same, f"{phase}: {name} is whole", failed)
    for mode in ("on", "off"):
        folder = t.scratch / f"continue-{mode}"
        words = ["--checkpoint-dir", folder, "--checkpoint-every", "3", "--checkpoint-async", mode]
        words += ["--fault", "throw:step=3,rank=2,phase=save_payload"]
        result = t.train_ok(4, *words, "--on-checkpoint-error", "continue", base=base)
        t.check(result.digest == plain.digest, "a failed save changes nothing", result)
        t.check("step 3 is not saved: rank 2: planned" in result.err, "it is said", result)
        t.check(3 not in steps(folder) and 12 in steps(folder), f"{names(folder)}", result)

    folder = t.scratch / "last"
    words = ["--checkpoint-dir", folder, "--on-checkpoint-error", "continue"]
    result = t.train(4, *words, "--fault", "throw:step=12,rank=1,phase=save_sync", base=base)
    t.check(result.code == 1, "a last step that is not saved is an error", result)
    t.check(result.digest == plain.digest, "after a whole run", result)

    # A limit on file sizes is an error with its reason, and not a signal.
    limited = t.scratch / "limited"
    limited.write_text('#!/bin/sh\nulimit -f 20000\nexec "$@"\n')
    limited.chmod(0o755)
    folder = t.scratch / "limit"
    words = ["train", "--data", t.data, *base, "--checkpoint-dir", folder]
    result = t.command(words, 4, through=limited)
    t.check(
        result.code == 1 and "File too large, errno 27); raise the limit" in result.err,
        "a write limit is an error that says so",
        result,
    )
    t.check(names(folder) == [], f"nothing is left: {names(folder)}", result)

    folder = t.scratch / "halt"
    words = ["--checkpoint-dir", folder, "--checkpoint-every", "3", "--checkpoint-async", "on"]
    words += ["--fault", "nonfinite:step=3,rank=1,value=nan", "--max-consecutive-skips", "1"]
    halted = t.train(4, *words, base=base)
    t.check(halted.code == 3, "the run halts", halted)
    t.check(steps(folder) == [3], "a halt waits for the save in flight", halted)
    t.check_refusal(
        t.train(2, "--checkpoint-minutes", "5"), 2, ["checkpoint-minutes"], "no place to save"
    )


def flip(path, byte):
    with open(path, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 4]))


def checkpoints(t):
    base = ["--model-parallel", "2", "--max-norm", "1"]
    folder = t.scratch / "damaged"
    save = ["--checkpoint-dir", folder, "--checkpoint-every", "2"]
    t.train_ok(4, *base, "--steps", "6", *save)
    straight = t.train_ok(4, *base, "--steps", "8")
    after_one = t.train_ok(4, *base, "--steps", "7")
    files = [folder / f"step-{step:012}.h5" for step in (2, 4, 6)]
    payload = 6001  # the arrays lie in front of all else: within the first one's first values

    def resumed(what, ranks=4, *flags):
        line = ["--model-parallel", "2", "--steps", "8", "--checkpoint-dir", folder, *flags]
        return t.train(ranks, *line, "--resume", what, base=[])

    # The first step after a resume is the one of the run that was not interrupted.
    one = t.train_ok(4, "--model-parallel", "2", "--steps", "7", "--resume", files[2], base=[])
    t.check(one.digest == after_one.digest, "the first step after a resume: equal bits", one)
    t.check(one.log == after_one.log[-len(one.log) :], "and its log line", one)
    t.check((folder / (files[2].name + ".verified")).exists(), "a verified restore is marked", one)

    # The newest that verifies is taken, and what is passed over is named.
    for broken, taken in ((files[2], files[1]), (files[1], files[0])):
        flip(broken, payload)
        result = resumed("latest")
        saved = folder / "step-000000000008.h5"  # else the newest of the next resume
        saved.unlink(missing_ok=True)
        t.check(result.code == 0, f"{broken.name} is damaged, an older one is taken", result)
        t.check_one_outcome(result, f"after {broken.name}")
        t.check(f"resumed from {taken}" in result.err, f"resumes from {taken.name}", result)
        t.check(result.digest == straight.digest, f"from {taken.name}: equal bits", result)
        for word in (broken.name, "/optimizers/adam/master block", "parameter 'hidden.weight'"):
            t.check(result.err.count(word) >= 1, f"the reason names '{word}'", result)
        marker = folder / (broken.name + ".verified")
        t.check(not marker.exists(), f"{broken.name} is no longer marked", result)
    three = resumed("latest", 6)
    (folder / "step-000000000008.h5").unlink(missing_ok=True)
    t.check(three.code == 0, "on 6 ranks the same one is taken", three)
    t.check(f"resumed from {files[0]}" in three.err, "the third, on 6 ranks", three)
    flip(files[0], payload)
    none = resumed("latest")
    t.check(none.code == 1, "no good checkpoint: exit code 1", none)
    t.check("holds no good checkpoint" in none.err, "and it says so", none)
    for file in files:
        named = none.err.count(f"checkpoint {file} is damaged")
        t.check(named == 1, f"{file.name} is named once", none)
    t.check_refusal(resumed(files[2]), 1, ["is damaged", "block"], "a damaged file by its name")
    result = resumed(files[2], 4, "--verify", "off")
    (folder / "step-000000000008.h5").unlink()
    t.check(result.code == 0 and result.digest != straight.digest, "--verify off takes it", result)
    t.check_refusal(
        resumed(files[2], 4, "--verify", "sampled"), 1, ["is damaged"], "a first block, sampled"
    )
    for file in files:
        flip(file, payload)

    # A folder is one run's: another one, or the same from an earlier step, harms nothing there.
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    log = t.scratch / "kept.jsonl"
    log.write_text("kept\n")
    words = ["--checkpoint-dir", folder, "--log", log]
    for flags in ([], ["--resume", files[1]], ["--init-from", files[2]]):
        result = t.train(2, *words, "--steps", "9", "--checkpoint-keep", "1", *flags)
        t.check_refusal(result, 2, ["is in use", files[2].name, "give another folder"], f"{flags}")
    now = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    t.check(now == kept and log.read_text() == "kept\n", "what is in use is left alone")
    branch = t.train_ok(
        *[4, "--model-parallel", "2", "--steps", "8", "--checkpoint-dir", t.scratch / "branch"],
        *["--resume", files[1]],
        base=[],
    )
    t.check(branch.digest == straight.digest, "an earlier step goes on in a folder of its own")
    branch = t.train_ok(
        *[4, "--model-parallel", "2", "--steps", "8", "--resume", folder],
        base=[],
    )
    t.check(f"resumed from {files[2]}" in branch.err, "a folder stands for its latest", branch)
    t.check(branch.digest == straight.digest, "equal bits", branch)

    # An epoch of 12 samples, stopped in its middle on 4 ranks, ended on 3: each sample once.
    small = t.scratch / "twelve"
    write_data(small, train=12, test=4)
    epoch = t.scratch / "epoch"
    flags = ["--precision", "fp32", "--batch", "5", "--hidden", "8", "--checkpoint-dir", epoch]
    t.train_ok(4, *flags, "--steps", "1", data=small, base=[])
    rest = t.train_ok(
        3, "--steps", "3", "--checkpoint-dir", epoch, "--resume", "latest", data=small, base=[]
    )
    t.check([a["window"] for a in rest.log] == [[5, 10], [10, 12]], "the rest of the epoch", rest)
    shown = t.command(["checkpoint", "show", epoch / "step-000000000003.h5", "--json"])
    t.check(
        json.loads(shown.out)["control_state"]["ledger"]["committed"] == [[0, 12]],
        "each of 12 samples once",
        shown,
    )


def weights(t):
    folder, fresh, part = t.scratch / "old", t.scratch / "fresh", t.scratch / "part"
    t.train_ok(4, "--model-parallel", "2", "--steps", "4", "--checkpoint-dir", folder)
    old = folder / "step-000000000004.h5"
    begun = t.train(
        3,
        *["--precision", "bf16", "--optimizer", "adamw", "--steps", "0", "--ema", "0.5"],
        *["--init-from", folder, "--checkpoint-dir", t.scratch / "begun"],
    )
    t.check(begun.code == 0, "a run begins with weights", begun)
    t.check(f"began with the weights of {old} at step 4" in begun.err, "and says so", begun)
    new = t.scratch / "begun" / "step-000000000000.h5"
    shown = json.loads(t.command(["checkpoint", "show", new, "--json"]).out)
    control = shown["control_state"]
    t.check(control["step"] == 0 and control["attempt"] == 0, "its control state is fresh", begun)
    t.check(control["ledger"]["committed"] == [], "and its ledger", begun)

    # Of the same optimizer: nothing but the moments differs.
    t.train(2, "--steps", "0", "--init-from", old, "--checkpoint-dir", fresh)
    new = fresh / "step-000000000000.h5"
    diff = t.command(["checkpoint", "diff", old, new])
    lines = [line for line in diff.out.splitlines() if line.startswith("adam/")]
    t.check(diff.code == 1 and len(lines) == 8, "moments differ, of four parameters", diff)
    t.check(all(" exp_avg" in line for line in lines), "and no weights", diff)

    t.train(
        2, "--steps", "0", "--init-from", old, "--init-only", "hidden.*", "--checkpoint-dir", part
    )
    diff = t.command(["checkpoint", "diff", old, part / "step-000000000000.h5"])
    masters = [line.split(" ")[0] for line in diff.out.splitlines() if " master: " in line]
    t.check(
        masters == ["adam/output.weight", "adam/output.bias"], f"only some of them: {masters}", diff
    )
    after = t.train_ok(2, "--steps", "2", "--init-from", old, "--init-only", "hidden.*,output.bias")
    t.check(after.summary["steps"] == 2, "and the run goes on", after)

    def refused(code, words, *flags):
        result = t.train(2, "--steps", "0", *flags)
        t.check_refusal(result, code, words, f"{flags}")

    refused(2, ["init-only"], "--init-only", "x")
    refused(2, ["both given"], "--init-from", old, "--resume", old)
    refused(2, ["no file step-*.h5"], "--init-from", t.data)
    refused(1, ["no parameter matches 'x*'"], "--init-from", old, "--init-only", "x*")
    refused(2, ["no such file"], "--init-from", t.scratch / "none.h5")
    result = t.train(2, "--init-from", old, "--hidden", "25", base=[])
    t.check_refusal(
        result, 1, ["adam/hidden.weight has shape [144, 24] there and [144, 25] here"], "shapes"
    )


def checkpoint_tools(t):
    folder = t.scratch / "tools"
    save = ["--checkpoint-dir", folder, "--checkpoint-every", "2"]
    t.train_ok(4, "--model-parallel", "2", "--steps", "4", *save)
    older, newer = (folder / f"step-{step:012}.h5" for step in (2, 4))

    def tool(code, words, *line, ranks=None):
        result = t.command(["checkpoint", *line], ranks)
        t.check(result.code == code, f"checkpoint {line[0]}: exit code {code}", result)
        for word in words:
            t.check(word in result.out, f"checkpoint {line[0]}: says '{word}'", result)
        return result

    for ranks in (None, 3):
        listed = tool(0, ["step 4, ", "latest", "step 2, "], "ls", folder, ranks=ranks)
        t.check(listed.out.count("\n") == 2, "one line a file", listed)
        words = ["hidden.weight", "3456 elements", "split along axis 1", "ledger: 128"]
        tool(0, words, "show", newer, ranks=ranks)
        words = [
            "control state: step is 2 and 4",
            "adam/output.bias exp_avg: 10 elements differ, in [0, 10)",
        ]
        tool(1, words, "diff", older, newer, ranks=ranks)
        tool(0, ["equal"], "diff", newer, newer, ranks=ranks)
    tool(0, ["good (step 2"], "verify", older, ranks=3)
    listed = tool(0, ["step 4, not verified yet", "step 2, verified"], "ls", folder)
    tool(0, ["good (step 2", "good (step 4"], "verify", older, newer)
    (folder / (newer.name + ".pin")).touch()
    entries = json.loads(tool(0, [], "ls", folder, "--json").out)
    t.check([e["step"] for e in entries] == [4, 2], "ls --json", listed)
    t.check(all(e["verified"] for e in entries), "all are marked", listed)
    t.check([e["pinned"] for e in entries] == [True, False], "a pin is seen", listed)

    flip(newer, 16384 + 9)
    words = ["good (step 2", "bad (1 of 21 blocks)", "/optimizers/adam/master block"]
    alone = tool(1, words, "verify", older, newer)
    shared = tool(1, [], "verify", older, newer, ranks=4)
    t.check(shared.out == alone.out, "verify says the same on 4 ranks", shared)
    tool(0, ["step 4, not verified yet, pinned"], "ls", folder)
    for ranks in (None, 2):
        result = t.command(["checkpoint", "diff", older, newer], ranks)
        t.check_refusal(result, 1, ["is damaged"], "diff with a damaged file")
    whole = older.read_bytes()
    older.write_bytes(whole[: len(whole) // 2])
    tool(1, ["truncated", "step 4"], "ls", folder)
    for flag in ("--resume", "--init-from"):
        t.check_refusal(t.train(2, flag, older), 1, ["truncated"], f"{flag} of a file that is cut")
    # Names of checkpoints that are none: nothing waits for a pipe's other end.
    pipe, link = folder / "step-000000000008.h5", folder / "step-000000000006.h5"
    os.mkfifo(pipe)
    link.symlink_to("nowhere")
    entries = json.loads(tool(1, ["it is no plain file"], "ls", folder, "--json").out)
    t.check(entries[1]["bytes"] == 0 and "refused" in entries[1], f"a link: {entries[1]}")
    t.check_refusal(t.train(2, "--resume", pipe), 1, ["cannot read"], "resume from a pipe")
    pipe.unlink()
    link.unlink()
    tool(1, ["bad\n", "truncated"], "verify", older, ranks=2)
    for ranks in (None, 2):
        for code, words, line in (
            (1, ["truncated"], ["show", older]),
            (2, ["no directory"], ["ls", t.scratch / "no"]),
            (2, ["not needed"], ["reshard", "x"]),
            (2, ["did you mean 'verify'?"], ["verfy", "x"]),
            (2, [], ["diff", "x"]),
        ):
            result = t.command(["checkpoint", *line], ranks)
            t.check_refusal(result, code, words, f"checkpoint {line[0]}")
    empty = t.scratch / "empty"
    empty.mkdir()
    tool(0, ["no checkpoints in"], "ls", empty)


def stop(t):
    fast = ["--precision", "fp16", "--init-scale", "32768", "--warmup", "5"]
    endless = [*fast, "--steps", "100000000"]

    def folder_of(what):
        return t.scratch / f"checkpoints-{what.replace(' ', '-')}"

    def check_stopped(result, what, said, code=75):
        """Saved at one boundary of all ranks, and the resumed run ends as one without the stop."""
        t.check(result.code == code, f"{what}: exit code {code}", result)
        t.check_one_outcome(result, what)
        t.check(said in result.err, f"{what}: says '{said}'", result)
        if result.code != code:
            return
        t.check(result.summary["verdict"] == "stop", f"{what}: verdict stop", result)
        step = result.summary["steps"]
        files = sorted(folder_of(what).glob("step-*.h5"))
        t.check(files and int(files[-1].stem[5:]) == step, f"{what}: saved at {step}", result)
        more = ["--checkpoint-dir", folder_of(what), "--resume", "auto", "--steps", step + 4]
        resumed = t.train_ok(4, *more, base=[])
        straight = t.train_ok(4, *fast, "--steps", step + 4)
        t.check(resumed.digest == straight.digest, f"{what}: resumed, equal bits", resumed)
        t.check(
            result.logs[0] + resumed.logs[0] == straight.logs[0],
            f"{what}: the two logs are that of the run without a stop",
            resumed,
        )

    def run(what, *words, environment=None):
        more = ["--checkpoint-dir", folder_of(what), "--resume", "auto", *words]
        return Background(t, 4, *endless, *more, environment=environment)

    # A signal, to any rank or to all; more of them while it saves and ends change nothing.
    for what, number, ranks, said in (
        ("SIGTERM to rank 2", signal.SIGTERM, [2], "(rank 2: SIGTERM)"),
        ("SIGUSR1 to rank 0", signal.SIGUSR1, [0], "(SIGUSR1)"),
    ):
        running = run(what)
        running.wait_for_attempts(5)
        running.signal(number, *ranks)
        check_stopped(running.end(), what, said)
    what = "a storm of signals"
    running = run(what, "--requeue-exit", "85")
    running.wait_for_attempts(5)
    result = running.end(storm=(signal.SIGUSR1, signal.SIGTERM))
    check_stopped(result, what, "stop requested", code=85)

    what = "saves in the background"
    running = run(what, "--checkpoint-async", "on", "--checkpoint-every", "2")
    running.wait_for_attempts(5)
    running.signal(signal.SIGUSR1, 3)
    check_stopped(running.end(), what, "(rank 3: SIGUSR1)")

    # The stop file, and the time of the job.
    what = "a stop file"
    running = run(what, "--stop-file", t.scratch / "please-stop")
    running.wait_for_attempts(5)
    t.check(running.process.poll() is None, f"{what}: runs as long as there is none")
    (t.scratch / "please-stop").write_text("")
    check_stopped(running.end(), what, "please-stop is there")
    what = "walltime"
    start = time.monotonic()
    result = run(what, "--walltime", "3").end()
    t.check(time.monotonic() - start < LIMIT / 2, f"{what}: in time", result)
    check_stopped(result, what, " s left)")
    what = "the end of a Slurm job"
    environment = {"SLURM_JOB_END_TIME": str(int(time.time()) + 4)}
    check_stopped(run(what, environment=environment).end(), what, " s left)")
    environment = {"SLURM_JOB_END_TIME": str(int(time.time()) - 4)}
    t.train_ok(
        2, *fast, "--steps", "5", "--checkpoint-dir", folder_of("past"), environment=environment
    )

    # In an attempt that is skipped: the step stands, what was learned from the skip is saved.
    skips = ["--fault", "nonfinite:attempt=1,rank=1", "--fault", "nonfinite:attempt=2,rank=0"]
    straight = t.train_ok(4, *fast, *skips, "--steps", "3")
    more = ["--checkpoint-dir", folder_of("skip"), "--resume", "auto", "--steps", "3", *skips]
    there = ["--stop-file", t.scratch / "please-stop"]
    for number in (1, 2):
        result = t.train(4, *fast, *more, *there)
        t.check(
            result.code == 75
            and result.summary["steps"] == 0
            and result.summary["attempts"] == number,
            f"stopped in skipped attempt {number}",
            result,
        )
    result = t.train_ok(4, *more)
    t.check(result.digest == straight.digest, "stopped in skipped attempts: equal bits", result)
    for key in ("attempts", "loss_scale", "skips", "samples_committed"):
        t.check(result.summary[key] == straight.summary[key], f"equal {key}", result)

    # Asked in the last attempt: the run is done. A halt stays a halt.
    result = t.train_ok(2, *fast, "--checkpoint-dir", folder_of("last"), *there, "--steps", "1")
    t.check(result.summary["verdict"] == "ok", "the last step is the end", result)
    words = ["--checkpoint-dir", folder_of("halt"), *there, "--steps", "5"]
    result = t.train(2, *fast, *words, "--fault", "throw:attempt=1,rank=1,phase=window")
    t.check(result.code == 3 and result.summary["verdict"] == "halt", "a halt wins", result)

    # The save fails: an error, not a request to be run again.
    for error in ("stop", "continue"):
        what = f"no folder, {error}"
        running = run(what, "--on-checkpoint-error", error)
        running.wait_for_attempts(5)
        folder_of(what).rmdir()
        folder_of(what).write_text("in the way")
        running.signal(signal.SIGTERM, 1)
        result = running.end()
        t.check(result.code == 1 and "checkpoints-no-folder" in result.err, what, result)

    # Without a checkpoint folder a signal is what it always was.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        running = Background(t, 2, *endless)
        running.wait_for_attempts(3)
        running.signal(number, 1)
        result = running.end()
        t.check(
            result.code == 128 + number and result.summary is None,
            f"dies by signal {number}",
            result,
        )

    # --resume auto with --init-from: the weights are for the first start alone.
    words = ["--checkpoint-dir", folder_of("begun"), "--resume", "auto", "--init-from"]
    words.append(next(folder_of("a stop file").glob("step-*.h5")))
    for steps, said in (("2", "began with the weights of"), ("4", "000002.h5 at step 2")):
        result = t.train_ok(2, *fast, *words, "--steps", steps)
        t.check(said in result.err, f"auto and init-from to step {steps}: {said}", result)

    # --resume auto: damaged files are no reason to start anew.
    folder = folder_of("damaged")
    folder.mkdir()
    whole = next(folder_of("a stop file").glob("step-*.h5")).read_bytes()
    for step in (7, 8):
        (folder / f"step-{step:012d}.h5").write_bytes(whole[: len(whole) // 2])
    words = ["--checkpoint-dir", folder, "--resume", "auto", "--steps", "3"]
    said = ["step-000000000007.h5", "step-000000000008.h5"]
    t.check_refusal(t.train(2, *fast, *words), 2, said, "auto, all files damaged")


def skip_lines(result):
    return [line for line in result.log if line["verdict"] == "skip"]


def faults_skip(t):
    base = ["--model-parallel", "2", "--precision", "fp32", "--steps", "6", "--max-norm", "1"]
    clean = t.train_ok(4, *base)
    t.check(not skip_lines(clean), "no skip without a fault", clean)

    # A bad value on any rank, in any parameter: one outcome, in the end the run without it.
    cases = [
        f"nonfinite:attempt=3,rank={rank},value={value}"
        for rank, value in ((0, "inf"), (1, "nan"), (2, "-inf"), (3, "nan"))
    ]
    cases += [
        f"nonfinite:attempt=2,rank={rank},param={param},element=5,value=inf"
        for rank, param in ((1, "hidden.bias"), (3, "output.weight"), (2, "output.bias"))
    ]
    cases += ["loss:attempt=4,rank=1,value=nan", "update:attempt=3,rank=2"]
    for update in ("staged", "in_place"):
        for fault in cases:
            if update == "in_place" and fault.startswith("update"):
                continue
            result = t.train_ok(4, *base, "--update", update, "--fault", fault)
            kind = fault.split(":")[0]
            what = f"{fault} ({update})"
            if kind == "loss":
                # A nonfinite loss alone: noted, and whatever the verdict, the samples are not lost.
                t.check(
                    any(a["ranks_with_nonfinite_loss"] == 1 for a in result.log),
                    f"{what}: noted",
                    result,
                )
            else:
                bad = skip_lines(result)
                t.check(len(bad) == 1, f"{what}: one skip", result)
                t.check(
                    bad and bad[0]["reason"] == {"nonfinite": "gradient", "update": "update"}[kind],
                    f"{what}: its reason",
                    result,
                )
                t.check(
                    bad
                    and (
                        kind == "update"
                        or bad[0]["offender"]["rank"] == int(fault.split("rank=")[1][0])
                    ),
                    f"{what}: the rank it came from",
                    result,
                )
                number = int(fault.split("attempt=")[1].split(",")[0])
                t.check(
                    bad
                    and bad[0]["attempt"] == number
                    and bad[0]["window"] == result.log[number]["window"],
                    f"{what}: the window is presented again",
                    result,
                )
                t.check(
                    bad and bad[0]["lr"] == result.log[number]["lr"],
                    f"{what}: the schedule waits",
                    result,
                )
                t.check(result.summary["attempts"] == 7, f"{what}: 7 attempts", result)
            t.check(result.digest == clean.digest, f"{what}: ends as without the fault", result)
            t.check(
                result.summary["samples_committed"] == clean.summary["samples_committed"]
                and result.summary["samples_dropped"] == 0,
                f"{what}: no sample lost",
                result,
            )

    # Micro-batches: the whole window is skipped, whichever of them is bad.
    base = ["--precision", "fp32", "--steps", "4", "--micro-batches", "3"]
    clean = t.train_ok(2, *base)
    for micro in (0, 2):
        result = t.train_ok(
            2, *base, "--fault", f"nonfinite:attempt=2,rank=1,micro={micro},value=nan"
        )
        bad = skip_lines(result)
        t.check(
            len(bad) == 1 and bad[0]["offender"].get("micro") == micro,
            f"micro-batch {micro} is named",
            result,
        )
        t.check(
            result.digest == clean.digest, f"micro-batch {micro}: ends as without the fault", result
        )

    # bf16 and fp16: state and schedule stay, the scale backs off in fp16 alone.
    for precision in ("bf16", "fp16"):
        base = ["--precision", precision, "--steps", "4", "--init-scale", "1024"]
        result = t.train_ok(2, *base, "--fault", "nonfinite:attempt=2,rank=0,value=inf")
        bad = skip_lines(result)
        t.check(len(bad) == 1, f"{precision}: one skip", result)
        t.check(
            result.log[2]["scale"] == (512 if precision == "fp16" else 1),
            f"{precision}: the scale after it",
            result,
        )

    # Dropped samples are counted and not presented again.
    result = t.train_ok(
        2,
        "--precision",
        "fp32",
        "--steps",
        "4",
        "--samples",
        "drop",
        "--fault",
        "nonfinite:attempt=2,rank=1,value=inf",
    )
    windows = [a["window"] for a in result.log]
    t.check(
        result.summary["samples_dropped"] == 32
        and all(a[1] == b[0] for a, b in zip(windows, windows[1:])),
        "dropped: counted, not presented again",
        result,
    )


def faults_halt(t):
    base = ["--model-parallel", "2", "--steps", "5", "--precision", "fp32"]
    before = t.train_ok(4, *base, "--steps", "2")

    def halts(what, reason, *flags, ranks=4, said=(), unchanged=True):
        start = time.monotonic()
        result = t.train(ranks, *base, *flags)
        t.check(result.code == 3, f"{what}: exit code 3", result)
        t.check_one_outcome(result, what)
        last = result.log[-1] if result.logs[0] else {}
        t.check(
            last.get("verdict") == "halt" and last.get("reason") == reason,
            f"{what}: halt for {reason}",
            result,
        )
        for word in said:
            t.check(word in result.err, f"{what}: says '{word}'", result)
        if unchanged:
            t.check(
                result.summary is not None and result.digest == before.digest,
                f"{what}: state unchanged",
                result,
            )
        t.check(time.monotonic() - start < 20, f"{what}: at once", result)
        return result

    # What cannot be written down changes nothing of what the run came to, and is said before a run.
    lost = ["--summary", "/dev/full"]
    result = t.train(2, "--steps", "2", *lost)
    t.check(result.code == 1 and "state digest" in result.out, "a lost summary fails a run", result)
    t.check("No space left on device" in result.err, "and why", result)
    result = halts(
        "a lost summary", "window_failed", "--fault", "throw:step=2,rank=1,phase=window", *lost,
        said=("No space left on device", "start anew"), unchanged=False,
    )
    t.check(before.digest in result.out, "a halt says its result all the same", result)
    nowhere = t.scratch / "nowhere" / "file"
    for words in (["train", "--data", t.data], ["bench", "step"], ["bench", "checkpoint"]):
        result = t.command([*words, "--summary", nowhere], 2)
        t.check_refusal(result, 2, ["summary", str(nowhere)], f"{words}: no place for a summary")
    result = t.command(["drill", "--data", t.data, "--junit", nowhere])
    t.check_refusal(result, 2, ["junit", str(nowhere)], "drill: no place for its result")

    for phase in ("window", "exchange", "ballot", "stage", "gather", "confirm"):
        reason = "window_failed" if phase in ("window", "exchange", "ballot") else "update_failed"
        for rank in (0, 3):
            halts(
                f"an exception in {phase} on rank {rank}",
                reason,
                "--fault",
                f"throw:step=2,rank={rank},phase={phase}",
                said=(f"on rank {rank}", phase),
            )
    for phase in ("stage", "confirm"):
        halts(
            f"an exception in {phase}, in place",
            "partial_update",
            "--update",
            "in_place",
            "--fault",
            f"throw:step=2,rank=1,phase={phase}",
            unchanged=False,
        )
    for rank in (0, 1, 3):
        halts(
            f"another scale on rank {rank}",
            "control_mismatch",
            "--fault",
            f"scale:step=2,rank={rank},factor=2",
            said=("loss_scale", f"rank {rank}"),
        )
    halts(
        "the same samples break it again and again",
        "repeat_limit",
        "--repeat-limit",
        "2",
        "--fault",
        "nonfinite:step=2,rank=1,value=nan",
    )
    halts(
        "skips in a row",
        "consecutive_skips",
        "--repeat-limit",
        "0",
        "--max-consecutive-skips",
        "3",
        "--fault",
        "nonfinite:step=2,rank=2,value=inf",
    )


def policy(t):
    # The loss scale: backs off by all ranks together, grows again, and halts at its minimum.
    result = t.train_ok(
        4,
        "--model-parallel",
        "2",
        "--steps",
        "12",
        "--init-scale",
        "1048576",
        "--growth-interval",
        "3",
    )
    bad = skip_lines(result)
    t.check(
        len(bad) >= 2 and all(b["reason"] == "gradient" for b in bad),
        "fp16 overflows at a large scale",
        result,
    )
    scale, good = 1048576, 0
    for a in result.log:
        t.check(
            a["scale"] == scale,
            f"attempt {a['attempt']}: scale {a['scale']}, {scale} by the rule",
            result,
        )
        good = good + 1 if a["verdict"] == "commit" else 0
        if a["verdict"] == "skip":
            scale /= 2
        elif good == 3:
            scale, good = scale * 2, 0
    t.check(result.summary["skips"]["gradient"] == len(bad), "skips are counted", result)
    t.check(result.summary["loss_scale"] == scale, "the last scale", result)

    result = t.train(2, "--steps", "3", "--init-scale", "1048576", "--min-scale", "1048576")
    t.check(
        result.code == 3 and result.summary["reason"] == "minimum_scale",
        "overflow at the least scale halts",
        result,
    )
    result = t.train_ok(2, "--steps", "6", "--init-scale", "1048576", "--hysteresis", "2")
    scales = [a["scale"] for a in result.log]
    t.check(
        scales[0] == scales[1] == 2 * scales[2], "hysteresis: the second overflow backs off", result
    )

    # The schedule goes by committed steps.
    result = t.train_ok(
        2,
        "--precision",
        "fp32",
        "--steps",
        "8",
        "--schedule",
        "linear",
        "--schedule-steps",
        "8",
        "--warmup",
        "2",
        "--lr",
        "0.3",
        "--fault",
        "nonfinite:attempt=2,rank=0",
    )
    rates = {}
    for a in result.log:
        step = a["step"] - (a["verdict"] == "commit")
        t.check(rates.setdefault(step, a["lr"]) == a["lr"], f"one rate at step {step}", result)
    t.check(
        abs(rates[0] - 0.1) < 1e-12 and abs(rates[1] - 0.2) < 1e-12 and abs(rates[2] - 0.3) < 1e-12,
        f"warm-up {rates}",
        result,
    )
    t.check(all(rates[s] > rates[s + 1] for s in range(2, 7)), f"decay {rates}", result)

    # Clipping, epochs and the short last window.
    result = t.train_ok(
        3, "--precision", "fp32", "--steps", "8", "--batch", "64", "--max-norm", "0.1"
    )
    for a in result.log:
        t.check(
            abs(a["clip"] - min(1, 0.1 / (a["grad_norm"] + 1e-6))) < 1e-9,
            f"clip {a['clip']}",
            result,
        )
    t.check(
        [a["samples"] for a in result.log] == [64, 64, 64, 8] * 2,
        "an epoch's last window is short",
        result,
    )
    t.check(result.summary["samples_committed"] == 400, "every sample of two epochs", result)


def left_behind(t, patience=10):
    """Command lines of processes of a run that go on after it; they get a moment to notice."""
    end = time.monotonic() + patience
    while True:
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if any(str(t.scratch).encode() in word for word in words):
                found.append(b" ".join(words).decode(errors="replace"))
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def killed_in_save(t):
    """kill -9 in each phase of the save at step 4, with the checkpoint of step 2 there."""
    base = ["--precision", "fp32", "--steps", "6", "--checkpoint-every", "2"]
    straight = t.train_ok(2, *base[:4])
    before = t.scratch / "before"
    t.train_ok(2, *base[:2], "--steps", "2", "--checkpoint-dir", before)

    def is_killed(what, folder, fault, *flags):
        result = t.train(2, *base, "--checkpoint-dir", folder, "--fault", fault, *flags)
        wanted = -9 if "launcher" in fault else 137
        t.check(result.code == wanted, f"{what}: exit code {wanted}", result)
        t.check(result.summary is None, f"{what}: it did not end by itself", result)
        t.check(not left_behind(t), f"{what}: no process goes on: {left_behind(t, 0)}")

    everywhere = ("save_prepare", "save_payload", "save_sync")
    on_rank_0 = ("save_complete", "save_publish", "save_pointer", "save_retain")
    for phase in everywhere + on_rank_0:
        victims = ["rank=1" if phase in everywhere else "rank=0", "rank=0,process=launcher"]
        if phase in everywhere:
            victims.append("rank=*")  # the others come to no later phase
        if phase in ("save_payload", "save_sync", "save_complete", "save_publish"):
            victims.append("rank=0,in the background")
        for victim in victims:
            what = f"killed in {phase}, {victim}"
            folder = t.scratch / what.replace(" ", "-").replace("*", "all")
            shutil.copytree(before, folder)
            resume_flags = ["--resume", "latest"]
            victim, _, background = victim.partition(",in the ")
            saving = ["--checkpoint-async", "on"] if background else []
            is_killed(what, folder, f"die:step=4,phase={phase},{victim}", *resume_flags, *saving)
            again = t.train_ok(2, *base, "--checkpoint-dir", folder, *resume_flags)
            step = 4 if phase in ("save_pointer", "save_retain") else 2
            t.check(f"at step {step}" in again.err, f"{what}: resumed at step {step}", again)
            t.check(again.digest == straight.digest, f"{what}: ends as if never killed", again)
            t.check(
                sorted(p.name for p in folder.iterdir() if p.suffix != ".verified")
                == ["latest"] + [f"step-{k:012}.h5" for k in (2, 4, 6)],
                f"{what}: nothing of the dead run is left: {[p.name for p in folder.iterdir()]}",
                again,
            )
            t.check(
                (folder / "latest").read_text() == "step-000000000006.h5\n",
                f"{what}: the pointer is that of the newest",
                again,
            )

    folder = t.scratch / "first"
    is_killed("killed in the first save", folder, "die:step=2,phase=save_sync,rank=*")
    result = t.train(2, *base, "--checkpoint-dir", folder, "--resume", "latest")
    t.check_refusal(
        result, 2, [str(folder), "no complete checkpoint"], "nothing to resume from"
    )


def bench(t):
    result = t.command(
        ["bench", "step", "--elements", "1000003", "--steps", "3", "--guard-blocks", "2"]
        + ["--summary", "summary.json"],
        2,
    )
    t.check(result.code == 0, "bench step", result)
    s = result.summary or {}
    t.check(
        0.2 < s.get("guarded_over_plain", 0) < 5 and "guards " in result.out,
        "steps with and without guards",
        result,
    )
    t.check(
        s.get("bytes_per_parameter") == 38, "fp16, 2 ranks: 4 + 4 read and written, 16 + 14", result
    )
    shares = s.get("phase_share", {})
    t.check(
        0.5 < sum(shares.values()) < 1.6
        and set(shares) >= {"exchange + scan", "ballot", "stage", "confirm", "gather", "publish"},
        f"phases {shares}",
        result,
    )
    bounds = s.get("bounds", {"none": 0})
    t.check(
        s.get("bound_gigabytes_per_second") == max(bounds.values()) > 0,
        "the best bound is taken",
        result,
    )
    fractions = [
        38 * 1000003 / turn["step_seconds"] * 1e-9 / turn["bound_gigabytes_per_second"]
        for turn in s.get("steps", [])
    ]
    t.check(
        len(fractions) == 3
        and abs(s["fraction_of_bound"] - statistics.median(fractions)) < 1e-12
        and abs(s["gigabytes_per_second"] * 1e9 - 38 * s["parameters_per_second"]) < 1e-3 * 38e6,
        "the fraction",
        result,
    )
    for flags in (
        ["--wire", "fp32", "--update", "in_place"],
        ["--shared-memory", "off", "--precision", "bf16"],
        ["--model-parallel", "2", "--precision", "fp32", "--rank-weights", "1,2,2,1"],
        ["--exchange", "reduce_scatter"],
    ):
        result = t.command(["bench", "step", "--elements", "100001", "--steps", "2", *flags], 4)
        t.check(
            result.code == 0 and "of the memory bound" in result.out, f"bench step {flags}", result
        )
    t.check_refusal(
        t.command(["bench", "step", "--model-parallel", "2"], 3), 2, ["(3)"], "indivisible ranks"
    )
    t.check_refusal(
        t.command(["bench", "step", "--elements", "0"], 2), 2, ["elements"], "no elements"
    )
    for io in ("mpiio", "skeleton"):
        words = ["bench", "checkpoint", "--elements", "200003", "--repeats", "2", "--io", io]
        result = t.command(words + ["--directory", t.scratch, "--summary", "summary.json"], 2)
        t.check(result.code == 0, f"bench checkpoint, {io}", result)
        s = result.summary or {}
        t.check(s.get("bytes") == 12 * 49 * 4096, "whole blocks of three arrays", result)
        t.check(
            s
            and all(s[part]["fraction_of_plain"] > 0 for part in ("save", "restore_cold"))
            and s["stall"]["of_a_copy"] > 0,
            f"bench checkpoint, {io}: ratios",
            result,
        )
        t.check(not list(t.scratch.glob("tutti-bench-*")), "its files are removed", result)
    t.check_refusal(
        t.command(["bench", "checkpoint", "--directory", "none/such"], 2), 1, ["none/such"],
        "a directory that is not there",
    )


def incidents(t):
    def of(result, number=0):
        paths = [line["incident"] for line in result.log if "incident" in line]
        return json.loads((result.folder / paths[number]).read_text())

    base = ["--precision", "fp32", "--steps", "4", "--incident-dir", "incidents"]
    result = t.train_ok(
        2,
        *base,
        "--micro-batches",
        "3",
        "--fault",
        "nonfinite:attempt=2,rank=1,micro=2,param=output.weight,element=5,value=-inf",
    )
    found = of(result)
    expected = {
        "attempt": 2,
        "step": 1,
        "verdict": "skip",
        "reason": "gradient",
        "stage": "micro_batch",
        "optimizer": "adam",
        "parameter": "output.weight",
        "element": 5,
        "value": "-inf",
        "count": 1,
        "micro": 2,
        "rank": 1,
        "before_synchronization": True,
        "window": [32, 64],
        "positions": [58, 64],
    }
    for key, value in expected.items():
        t.check(found[key] == value, f"incident: {key} is {found[key]}, not {value}", result)
    t.check(
        len(found["micro_losses"]) == 3 and all(0 < loss < 10 for loss in found["micro_losses"]),
        "incident: the loss of each micro-batch",
        result,
    )
    t.check(f"; incident {found['file']}" in result.err, "one log line names the file", result)
    folder = result.folder / "incidents"
    raw = (folder / "incident-000000000002.labels.npy").read_bytes()
    with gzip.open(t.data / "train-labels-idx1-ubyte.gz") as file:
        labels = file.read()[8:]
    t.check(
        raw.startswith(b"\x93NUMPY\x01\x00")
        and list(raw[-6:]) == [labels[i] for i in found["sample_ids"]],
        "the labels of these samples lie beside it",
        result,
    )
    raw = (folder / "incident-000000000002.inputs.npy").read_bytes()
    with gzip.open(t.data / "train-images-idx3-ubyte.gz") as file:
        pixels = file.read()[16:]
    first = found["sample_ids"][0]
    t.check(
        raw[-6 * 144 : -5 * 144] == pixels[first * 144 : (first + 1) * 144],
        "and their images",
        result,
    )
    t.check(len(list(folder.iterdir())) == 3, "nothing else is left there", result)

    said = t.command(["incident", "ls", folder])
    t.check(said.code == 0 and "adam/output.weight[5] at micro_batch" in said.out, "ls", said)
    for path in (folder, folder / "incident-000000000002.json"):
        said = t.command(["incident", "show", path])
        t.check(said.code == 0 and "micro-batch        2\n" in said.out, "show", said)
    said = t.command(["incident", "show", "--json", folder], 2)
    t.check(said.code == 0 and json.loads(said.out) == found, "show --json on 2 ranks", said)
    t.check_refusal(t.command(["incident"]), 2, ["ls, show"], "incident without an action")
    t.check_refusal(t.command(["incident", "show", "no.json"]), 1, ["no.json"], "no such incident")
    t.check_refusal(t.command(["incident", "ls", "none"]), 1, ["none"], "no such folder")

    # Computed again: what it was, on the log line, in the file and as people read it.
    fault = "nonfinite:attempt=2,rank=3,param=output.weight,element=5,value=inf"
    plain = t.train_ok(4, *base, "--model-parallel", "2", "--fault", fault)
    for permanent, cause, word in (
        ("no", "transient", "finite on rank 3, not the same bits; finite on rank 1, which agrees"),
        ("yes", "machine", "nonfinite on rank 3, the same bits; finite on rank 1, which does not"),
    ):
        again = t.train_ok(4, *base, "--model-parallel", "2", "--recompute-on-fault", "on",
                           "--fault", f"{fault},permanent={permanent}")
        found = of(again)
        t.check(
            found["recomputation"]["cause"] == cause
            and found["recomputation"]["rank"] == 3
            and found["recomputation"]["other"] == 1,
            f"{cause}: {found['recomputation']}",
            again,
        )
        t.check(f"computed again: {cause})" in again.err, f"{cause} on the log line", again)
        t.check(again.digest == plain.digest, f"{cause}: it changes no bit", again)
        said = t.command(["incident", "show", again.folder / "incidents"])
        t.check(f"computed again     {cause} ({word}" in said.out, f"{cause}: show", said)
    again = t.train(4, "--steps", "4", "--incident-dir", "incidents", "--init-scale", "1e8",
                    "--recompute-on-fault", "on", "--micro-batches", "2")
    t.check(
        again.code == 0 and of(again)["recomputation"]["cause"] == "data",
        "an overflow from the loss scale is the data's",
        again,
    )

    # What cannot be written stops nothing, and is said.
    result = t.train_ok(
        2,
        *base[:-1],
        "/proc/nowhere",
        "--fault",
        "nonfinite:attempt=2,rank=1,value=nan",
    )
    t.check("the incident is not written whole" in result.err, "an unwritable folder", result)

    # A halt: the last word says where the run stands and how to go on.
    for fault, reason, words in (
        ("nonfinite:step=4,rank=1,value=nan", "repeat_limit", ["broke it 2 times"]),
        ("throw:step=4,rank=0,phase=stage", "update_failed", ["planned exception"]),
        ("bitflip:step=4,rank=1,param=hidden.weight,element=5", "replica_mismatch", ["block 0"]),
    ):
        for shared in ("on", "off"):
            result = t.train(
                2,
                *base[:4],
                "--steps",
                "6",
                "--repeat-limit",
                "2",
                "--digest-every",
                "2",
                "--checkpoint-dir",
                "saved",
                "--checkpoint-every",
                "2",
                "--shared-memory",
                shared,
                "--fault",
                fault,
            )
            what = f"{fault}, shared memory {shared}"
            t.check(result.code == 3, f"{what}: exit code 3", result)
            t.check_one_outcome(result, what)
            last = [line for line in result.err.splitlines() if "last committed step" in line]
            t.check(len(last) == 1, f"{what}: one last word", result)
            checkpoint = "saved/step-000000000004.h5"
            for word in [
                f"halted ({reason}",
                "last committed step 4",
                f"newest checkpoint {checkpoint}",
                "; incident saved/incidents/incident-",
                f"resume with --resume {checkpoint}",
                *words,
            ]:
                t.check(last and word in last[0], f"{what}: '{word}'", result)
            found = of(result, -1)
            t.check(
                found["reason"] == reason
                and found["checkpoint"] == {"path": checkpoint, "step": 4},
                f"{what}: reason and checkpoint in the incident",
                result,
            )
            if reason == "replica_mismatch":
                t.check(
                    found["parameter"] == "hidden.weight"
                    and found["replica_block"] == 0
                    and found["rank"] == (0 if shared == "on" else 1),
                    f"{what}: the copy in which it is",
                    result,
                )

    clean = t.train_ok(4, *base[:4], "--model-parallel", "2")
    checked = t.train_ok(4, *base[:4], "--model-parallel", "2", "--digest-every", "1")
    t.check(clean.digest == checked.digest, "digests change no bit", checked)

    result = t.train(
        2,
        "--steps",
        "4",
        "--init-scale",
        "1e15",
        "--skip-window",
        "8",
        "--max-skip-rate",
        "0.5",
    )
    t.check(
        result.code == 3 and result.summary["reason"] == "skip_rate" and len(result.log) == 8,
        "too many skips among the last attempts",
        result,
    )
    t.check([a["skip_rate"] for a in result.log][:7] == [1] * 7, "the skip rate is logged", result)


def replay(t):
    def again(what, finding, path, *flags, words=()):
        said = t.command(["incident", "replay", path, "--data", t.data, *flags])
        last = said.out.strip().splitlines()[-1] if said.out.strip() else ""
        t.check(said.code == 0 and finding in last, f"{what}: {finding}", said)
        for word in words:
            t.check(word in said.out, f"{what}: '{word}'", said)
        return said

    base = ["--steps", "5", "--incident-dir", "incidents", "--model-parallel", "2"]

    # A real overflow, before there is any checkpoint.
    result = t.train_ok(4, *base, "--init-scale", "1e8")
    first = result.folder / "incidents" / "incident-000000000001.json"
    found = json.loads(first.read_text())
    t.check(
        found["node"] and found["job"] == {
            "data_parallel": 2, "model_parallel": 2, "micro_batches": 1}
        and found["configuration"]["init-scale"] == 1e8,
        "node, job and configuration",
        result,
    )
    said = again(
        "an overflow", "overflow from the loss scale (finite at ", first,
        words=["first ones of seed 1", "equal to the data set", "hidden product", "fp64 "],
    )
    scale = float(said.out.split("(finite at ")[-1].split(")")[0])
    t.check(
        abs(math.log2(1e8 / scale) - round(math.log2(1e8 / scale))) < 1e-4 and scale < 1e8,
        f"a scale that backing off comes to: {scale}",
        said,
    )
    as_json = t.command(["incident", "replay", first, "--json"])  # another data set is here
    t.check(
        as_json.code == 0 and "finite at" in json.loads(as_json.out)["finding"], "--json", as_json
    )

    # The recorded samples are what is looked at.
    labels = result.folder / "incidents" / "incident-000000000001.labels.npy"
    good = labels.read_bytes()
    sample = found["sample_ids"][-1]
    labels.write_bytes(good[:-1] + bytes([17]))
    again("a label", f"bad sample {sample} (label 17 of 10 classes)", first)
    other = (good[-1] + 1) % 10
    labels.write_bytes(good[:-1] + bytes([other]))
    again("another label", f"bad sample {sample} (what the rank had", first)
    labels.write_bytes(good)
    inputs = result.folder / "incidents" / "incident-000000000001.inputs.npy"
    pixels = inputs.read_bytes()
    for what, damaged in (
        ("cut", pixels[:-10]),
        ("a whole image short", pixels[:-144]),
        ("longer", pixels + b"x"),
        ("fewer rows", pixels.replace(b"'shape': (16,", b"'shape': (8, ")[: -8 * 144]),
        ("no array", b"pixels"),
    ):
        inputs.write_bytes(damaged)
        gone = t.command(["incident", "replay", first, "--data", t.data])
        t.check_refusal(gone, 1, ["inputs.npy"], f"an array that is damaged: {what}")
    inputs.write_bytes(pixels)
    labels.unlink()
    again("no arrays", "(finite at ", first, words=["of the data set, at positions"])
    gone = t.command(["incident", "replay", first, "--data", "nowhere"])
    t.check_refusal(gone, 1, ["--data", "nowhere"], "neither arrays nor data")

    # What one rank had and no other computes: the machine. With and without steps in between.
    saved = ["--checkpoint-dir", "saved", "--checkpoint-every", "2", "--precision", "bf16"]
    for attempt in (3, 4):
        result = t.train_ok(
            4, *base, *saved, "--fault", f"nonfinite:attempt={attempt},rank=2,value=inf"
        )
        path = result.folder / "incidents"
        gone = t.command(["incident", "replay", path, "--data", t.data])
        t.check_refusal(gone, 1, ["saved/step-000000000002.h5"], "the checkpoint is elsewhere")
        words = ["of saved/step-000000000002.h5 (step 2)"] if attempt == 3 else [
            "and 1 steps run again on one rank"]
        said = t.command(
            ["incident", "replay", "incidents", "--data", t.data], folder=result.folder
        )
        t.check(
            said.code == 0 and "suspect hardware on rank 2, node" in said.out, "hardware", said
        )
        for word in words:
            t.check(word in said.out, f"'{word}'", said)
        said = again(
            "the checkpoint by flag", "suspect hardware on rank 2", path, "--checkpoint",
            result.folder / "saved" / "step-000000000002.h5",
        )
    said = t.command(
        ["incident", "replay", "incidents", "--data", t.data, "--most-steps", "0"],
        folder=result.folder,
    )
    t.check_refusal(said, 2, ["is 1 steps after", "--most-steps"], "more steps than wanted")

    # A checkpoint that a buggy program wrote: every hash is right, the values are not.
    forged = t.scratch / "forged.h5"
    shutil.copy(result.folder / "saved" / "step-000000000002.h5", forged)
    subprocess.run([t.forge, forged, "1", "77", "inf"], check=True)
    again(
        "a nonfinite state", "optimizer state was nonfinite when restored", path, "--checkpoint",
        forged, words=["of parameter 'hidden.weight' is inf"],
    )

    # A file that somebody has edited.
    for field, value, word in (
        ("job", {"data_parallel": 0, "model_parallel": 0, "micro_batches": 1}, "0 x 0 ranks"),
        ("rank", 99, "rank 99 of 4"),
        ("stage", "sideways", "'sideways' is no stage"),
        ("micro", 7, "micro-batch 7 of 1"),
        ("loss_scale", "nan", "loss scale is nan"),
        ("positions", [900, 950], "positions 900 to 950"),
    ):
        edited = json.loads(next(path.glob("*.json")).read_text())
        edited[field] = value
        (t.scratch / "edited.json").write_text(json.dumps(edited))
        gone = t.command(["incident", "replay", t.scratch / "edited.json", "--data", t.data])
        t.check_refusal(gone, 1, [word], f"nonsense: {field}")

    # Interrupted while it makes steps again, it leaves nothing.
    far = t.train_ok(2, "--steps", "3000", "--incident-dir", "incidents", "--precision", "fp32",
                     "--fault", "nonfinite:attempt=3000,rank=1,value=inf")
    for number in (signal.SIGINT, signal.SIGTERM):
        temporary = t.scratch / f"temporary-{number}"
        temporary.mkdir()
        run = subprocess.Popen(
            [t.tutti, "incident", "replay", far.folder / "incidents", "--data", t.data,
             "--most-steps", "5000"],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        said = run.stderr.readline().decode()
        t.check("making 2999 steps again, on one rank" in said, f"a word before it: {said}")
        run.send_signal(number)
        err = run.communicate(timeout=LIMIT)[1].decode()
        t.check(
            run.returncode == 75 and "asked to stop" in err
            and not list(temporary.glob("tutti-replay*")),
            f"a replay that is interrupted: {run.returncode} {err}",
        )

    newer = result.folder / "saved" / "step-000000000004.h5"
    gone = t.command(["incident", "replay", path, "--checkpoint", newer])
    t.check_refusal(gone, 2, ["older one"], "a checkpoint from after it")

    # Each stage gets a true word.
    for fault, flags, finding in (
        ("loss:attempt=3,rank=1,value=nan", [], "suspect hardware on rank 1"),
        ("update:attempt=3,rank=1", [], "gradient too large for Adam"),
        ("nonfinite:attempt=3,rank=1,value=65504",
         ["--precision", "fp16", "--init-scale", "1e-35"], "unscaled, the gradient is 6.5"),
        ("state:attempt=3,rank=3,value=nan", [], "suspect memory of rank 3"),
        ("throw:attempt=3,rank=2,phase=stage", [], "rank 2 failed in phase stage"),
        ("scale:attempt=3,rank=1,factor=2", [], "loss_scale on rank 1 is not that"),
    ):
        result = t.train(4, *base, "--precision", "fp32", *flags, "--fault", fault)
        again(fault, finding, result.folder / "incidents")
    many = t.command(["incident", "replay", first], 2)
    t.check_refusal(many, 2, ["on 2", "without a launcher"], "replay on 2 ranks")
    t.check_refusal(t.command(["incident", "replay", "no.json"]), 1, ["no.json"], "no incident")


def drill(t):
    t.limit = 200
    names = [
        "nonfinite/loss/fp16/rank0/drop",
        "nonfinite/micro_batch/fp16/rank2/replay",
        "nonfinite/accumulation/bf16/rank3/replay",
        "nonfinite/exchange/bf16/rank2/drop",
        "nonfinite/unscale/fp16/rank1/drop",
        "nonfinite/update/fp32/rank0/replay",
        "nonfinite/state/fp32/rank3",
        "throw/confirm/rank3/in_place",
        "die/publish/rank3",
        "die/save_publish",
        "stall/gather/rank0",
        "mismatch/*/rank1",
        "replica/bitflip/rank2",
        "policy/skip_rate",
        "optimizers/state/rank3",
        "in_place/update/bf16/rank2",
        "recompute/machine/accumulation/bf16/rank3",
        "recompute/throw/rank2",
    ]
    said = t.command(["drill", *names, "--junit", "drill.xml"])
    t.check(
        said.code == 0 and f"all {len(names)} drills came to what they must" in said.out,
        "one drill of each kind",
        said,
    )
    suite = xml.etree.ElementTree.parse(said.folder / "drill.xml").getroot()
    t.check(
        suite.get("tests") == str(len(names))
        and suite.get("failures") == "0"
        and {case.get("classname") for case in suite} == {name.split("/")[0] for name in names},
        "its JUnit XML",
        said,
    )
    t.check(os.listdir(said.folder) == ["drill.xml"], "no job leaves anything", said)

    # A job in which no fault fires must not pass.
    launcher = t.scratch / "without_fault"
    launcher.write_text(
        '#!/bin/sh\nranks=$1; shift\nfor word; do shift; case $word in\n'
        '--fault) drop=1;; *) [ -n "$drop" ] || set -- "$@" "$word"; drop=;; esac; done\n'
        f'exec {t.mpirun} "$ranks" "$@"\n'
    )
    launcher.chmod(0o755)
    wrong = ["nonfinite/micro_batch/fp32/rank1/drop", "throw/stage/rank0/staged"]
    said = t.command(
        ["drill", *wrong, "--launcher", f"{launcher} {{ranks}}", "--keep", "kept"]
        + ["--junit", "drill.xml"]
    )
    t.check(
        said.code == 1
        and said.out.count("FAIL ") == 2
        and "verdict commit (none), skip (gradient) expected" in said.out
        and "exit code 0, 3 expected" in said.out
        and (said.folder / "kept" / wrong[0] / "log-3.jsonl").exists(),
        "drills without their faults",
        said,
    )
    suite = xml.etree.ElementTree.parse(said.folder / "drill.xml").getroot()
    t.check(suite.get("failures") == "2" and len(suite.findall(".//failure")) == 2, "XML", said)

    # Nor one that ends with other weights than it must.
    launcher.write_text(
        '#!/bin/sh\nranks=$1; shift\ncase "$*" in *--fault*) set -- "$@" --lr 0.002;; esac\n'
        f'exec {t.mpirun} "$ranks" "$@"\n'
    )
    wrong = ["nonfinite/loss/fp32/rank1/replay", "mismatch/loss_scale/rank2"]
    said = t.command(["drill", *wrong, "--launcher", f"{launcher} {{ranks}}"])
    t.check(
        said.code == 1 and said.out.count("does not end with the state_digest that it must") == 2,
        "drills that end with other weights",
        said,
    )
    launcher.write_text("#!/bin/sh\nexec sleep 1000\n")
    said = t.command(["drill", wrong[0], "--launcher", str(launcher), "--seconds", "1"])
    t.check(said.code == 1 and "it hangs (no end within the limit" in said.out, "--seconds", said)

    # Images of another size have their elements in other places.
    said = t.command(["drill", "nonfinite/exchange/fp32/4x1/rank2", "--data", t.data])
    t.check(said.code == 0, "drills on another data set", said)

    listed = t.command(["drill", "--list"])
    t.check(
        listed.code == 0 and len(set(listed.out.split("\n\n")[0].splitlines())) > 200,
        "--list: each name once",
        listed,
    )
    t.check_refusal(
        t.command(["drill", "nonfinite/micro_batch/fp32/rank1/dorp"]), 2, ["did you mean"],
        "a misspelt drill",
    )
    t.check_refusal(
        t.command(["drill", names[0], "--launcher", "no-such-launcher"]), 2, ["no-such-launcher"],
        "a launcher that is not there",
    )
    t.check_refusal(t.command(["drill", names[0]], ranks=2), 2, ["--launcher"], "under a launcher")

    # Interrupted in a job that hangs: it takes the job along.
    words = [t.tutti, "drill", "stall/ballot/rank0", "--keep", "kept", "--data", str(t.data)]
    run = subprocess.Popen(words,
                           cwd=t.scratch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    log = t.scratch / "kept" / "stall/ballot/rank0" / "log-3.jsonl"
    late = time.monotonic() + LIMIT
    while not log.exists() and run.poll() is None and time.monotonic() < late:
        time.sleep(0.02)
    run.send_signal(signal.SIGTERM)
    err = run.communicate(timeout=LIMIT)[1].decode()
    t.check(run.returncode == 143 and "was interrupted" in err, f"interrupted: {run.returncode}")
    t.check(not left_behind(t), "it leaves no process")


def watchdog(t):
    base = ["--precision", "fp32", "--steps", "5"]
    saved = ["--checkpoint-dir", "saved", "--checkpoint-every", "2"]

    for ranks, rank, phase, flags in (
        (2, 1, "window", []),
        (3, 0, "exchange", ["--shared-memory", "off"]),
        (4, 2, "ballot", ["--model-parallel", "2"]),
        (2, 0, "gather", []),
        (3, 2, "publish", []),
        (2, 1, "save_payload", saved),
    ):
        start = time.monotonic()
        result = t.train(
            ranks, *base, *flags, "--watchdog", "2", "--fault",
            f"stall:step=2,rank={rank},phase={phase}",
        )
        what = f"a stall in {phase} on rank {rank} of {ranks}"
        t.check(result.code == 4, f"{what}: exit code 4", result)
        named = [line for line in result.err.splitlines() if " hangs (" in line]
        t.check(
            len(named) == 1 and f"rank {rank} hangs" in named[0]
            and f"in phase {phase} of step 2" in named[0],
            f"{what}: named once with its place",
            result,
        )
        t.check(time.monotonic() - start < 25, f"{what}: in time", result)

    straight = t.train_ok(2, *base)
    for phase, step in (("publish", 3), ("stage", 2)):
        folder = t.scratch / f"dead-{phase}"
        flags = ["--checkpoint-dir", folder, "--checkpoint-every", "2"]
        result = t.train(2, *base, *flags, "--fault", f"die:step={step},rank=1,phase={phase}")
        what = f"a death in {phase}"
        t.check(result.code == 137, f"{what}: the launcher's own code", result)
        told, launcher = result.err.find("rank 1 has died"), result.err.find("mpirun noticed")
        t.check(
            told >= 0 and (launcher < 0 or told < launcher)
            and f"in phase {phase} of step {step}" in result.err,
            f"{what}: told, and before the launcher's word",
            result,
        )
        resumed = t.train_ok(2, *base, *flags, "--resume", "latest", base=[])
        t.check(
            "step-000000000002.h5 at step 2" in resumed.err and resumed.digest == straight.digest,
            f"{what}: from the last committed checkpoint to the same end",
            resumed,
        )

    # Slow is not lost, and without the watchdog nothing is said.
    result = t.train_ok(
        2, *base, "--watchdog", "5", "--fault", "stall:step=2,rank=1,phase=stage,seconds=1.5"
    )
    t.check("hangs" not in result.err and result.digest == straight.digest, "a pause", result)
    result = t.train_ok(
        2, *base, "--watchdog", "0", "--fault", "stall:step=2,rank=1,phase=stage,seconds=1.5"
    )
    t.check("hangs" not in result.err, "no watchdog", result)


def gpu(t):
    """Only in a CUDA build: ranks on GPUs, alone and beside ranks on the host."""
    info = t.command(["info"]).out
    devices = re.search(r"built in, (\d+) usable", info)
    if devices is None or devices[1] == "0":
        print("no GPU is usable here")
        sys.exit(77)
    base = ["--steps", "6", "--precision", "bf16", "--digest-every", "1"]
    for model in ("1", "2"):
        cuda = [*base, "--model-parallel", model, "--device", "cuda"]
        first = t.train_ok(2, *cuda)
        for what, more in (
            ("messages", ["--shared-memory", "off"]),
            ("in place", ["--update", "in_place"]),
            *([("NCCL", ["--transport", "nccl"])]
              if "NCCL" in info and "NCCL            not" not in info and int(devices[1]) > 1
              else []),
        ):
            again = t.train_ok(2, *cuda, *more)
            t.check(again.digest == first.digest, f"{what}: the same bits", again)
    # Two devices, two ways to multiply: one outcome all the same.
    mixed = t.train_ok(3, *base, "--rank-weights", "auto")
    t.check_one_outcome(mixed, "ranks that share GPUs")
    said = t.command(["drill", "cuda/nonfinite", "cuda/throw", "cuda/policy"])
    t.check(said.code == 0, "drills on the GPU", said)


def main_job(t):
    folder = "/usr/share/datasets/fashion-mnist"
    start = time.monotonic()
    t.limit = 230
    result = t.train(4, "--model-parallel", "2", data=folder, base=[])
    seconds = time.monotonic() - start
    t.check(result.code == 0, "the default run", result)
    t.check_one_outcome(result, "the default run")
    accuracy = result.summary["test_accuracy"]
    print(f"test accuracy {accuracy} in {seconds:.0f} s, skips {result.summary['skips']}")
    t.check(accuracy >= 0.86, f"test accuracy {accuracy}", result)
    t.check(result.summary["skips"]["gradient"] >= 2, "genuine skips", result)
    t.check(
        all("offender" in line for line in skip_lines(result)), "each names its offender", result
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--forge", required=True, help="the program forge_state")
    parser.add_argument("group")
    options = parser.parse_args()
    bench_ = Bench(options.tutti, options.mpirun, options.forge)
    start = time.monotonic()
    globals()[options.group](bench_)
    print(
        f"{options.group}: {bench_.runs} runs in {time.monotonic() - start:.0f} s,"
        f" {bench_.failures} failures"
    )
    if not bench_.failures:
        subprocess.run(["rm", "-rf", str(bench_.scratch)], check=True)
    return 1 if bench_.failures else 0


if __name__ == "__main__":
    sys.exit(main())
