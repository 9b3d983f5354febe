#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs apps/slurm's templates on a real Slurm cluster of four virtual nodes on this machine, and
interrupts them in every way that Slurm knows: what is requeued must end as a run that was left
alone. The cluster and everything that it starts live in a PID namespace of this test, so none of
it outlives the test, whatever ends it. Exits with 77 where there can be no cluster.

usage: slurm_test.py --tutti PROGRAM --templates FOLDER
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))
from system_test import write_data  # noqa: E402

SKIPPED = 77
NODES = 4
STEPS = 400
# No overflow at any rank count, so that the windows of samples are the same at each.
RUN = ["--hidden", "24", "--batch", "32", "--init-scale", "1024", "--progress-every", "50"]
# At another rank count sums are rounded in another order, in fp16: tolerances for the loss of every
# step and the share of the 60 test images.
LOSS_TOLERANCE, ACCURACY_TOLERANCE = 0.005, 0.05
# What Open MPI needs on loopback as root. The ring fence: with its default, Slurm 22.05's PMIx
# plugin lets some ranks leave MPI_Init early, and Open MPI 4.1's TCP transport crashes on their
# messages (1 start in 25).
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "SLURM_PMIX_FENCE": "ring",
}


def why_no_cluster():
    """Nothing, or the reason why there cannot be one here."""
    if os.geteuid() != 0:
        return "Slurm's virtual nodes need root"
    path = os.environ["PATH"] + ":/usr/sbin"
    for program in ("unshare", "munged", "slurmctld", "slurmd", "sbatch", "srun"):
        if shutil.which(program, path=path) is None:
            return f"{program} is not installed (apps/setup tests installs it where it can)"
    probe = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--mount"]
    probe += ["sh", "-c", "hostname probe && mount -t tmpfs tmpfs /dev/shm"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        return "this machine does not let its root make namespaces"
    return None


def free_ports(count):
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(21000 + os.getpid() % 1000 * 8, 32000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            pass
    raise SystemExit("no free ports on 127.0.0.1")


class Cluster:
    def __init__(self, options):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="tutti-slurm-"))
        self.scratch.chmod(0o755)
        self.folder = self.scratch / "cluster"
        self.failures = 0
        self.templates = pathlib.Path(options.templates).resolve()
        self.tutti = os.path.abspath(options.tutti)
        write_data(self.scratch / "data")
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("TUTTI_", "SLURM_", "SBATCH_"))
        }
        self.environment = {**clean, **MPI, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.environment["TUTTI_RANKS_PER_NODE"] = "1"  # the nodes share few real cores
        start = [HERE / "start_cluster", self.folder, NODES, 2, free_ports(NODES + 1)]
        done = subprocess.run(
            [str(word) for word in start], env=clean, capture_output=True, text=True, timeout=60
        )
        self.up = done.returncode == 0
        self.said = done.stdout + done.stderr
        paced = self.scratch / "paced"
        # The first PACED_STARTS starts of a job stall for a moment in each step from the tenth on,
        # so that there is a running step to interrupt; the last start runs freely.
        paced.write_text(
            f"""#!/bin/sh
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt "$PACED_STARTS" ]; then
  stall='stall:step=%.0f,rank=0,phase=window,seconds=0.25'
  export TUTTI_FAULT="$(seq -s ' ' -f "$stall" 10 {STEPS})"
fi
exec "{self.tutti}" "$@"
"""
        )
        paced.chmod(0o755)
        self.paced = str(paced)

    def call(self, *words, check=True, more=None):
        """A command of Slurm; more: of the environment."""
        done = subprocess.run(
            [str(word) for word in words],
            cwd=self.scratch,
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check and done.returncode != 0:
            raise SystemExit(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def check(self, holds, what, job=None):
        if holds:
            return
        self.failures += 1
        print(f"FAILED: {what}")
        if job is not None:
            job.show()

    def train(self, template, *words, sbatch=(), starts=0):
        """Submits a run, the first `starts` starts of which are slowed down."""
        line = ["sbatch", "--parsable", *sbatch, self.templates / template]
        line += ["--data", self.scratch / "data", *RUN, "--steps", STEPS, *words]
        settings = {
            "TUTTI": self.paced,
            "PACED_STARTS": str(starts),
            "TUTTI_TEMPLATES": str(self.templates),
        }
        return self.call(*line, more=settings)


class Job:
    """A job that trains, and what can be seen of it from outside."""

    def __init__(self, cluster, number, run=None):
        self.cluster, self.number = cluster, number
        self.run = run or cluster.scratch / f"tutti-{number}"

    def field(self, name):
        text = self.cluster.call("scontrol", "show", "job", "-o", self.number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)[name]

    def lines(self):
        log = self.run / "log.jsonl"
        return [json.loads(x) for x in log.read_text().splitlines()] if log.exists() else []

    def windows(self):
        """The window of samples of each committed step; of two lines the later one counts."""
        return {a["step"]: a["window"] for a in self.lines() if a["verdict"] == "commit"}

    def losses(self):
        return {a["step"]: a["loss"] for a in self.lines() if a["verdict"] == "commit"}

    def summary(self):
        return json.loads((self.run / "summary.json").read_text())

    def output(self):
        file = self.cluster.scratch / f"tutti-{self.number.replace('_', '-')}.out"
        return file.read_text() if file.exists() else ""

    def show(self):
        print(self.output()[-4000:])
        print(self.cluster.call("scontrol", "show", "job", self.number, check=False))
        print((self.cluster.folder / "log/slurmctld.log").read_text()[-2000:])

    def wait(self, holds, what, seconds=90):
        late = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > late or self.field("JobState") == "FAILED":
                self.show()
                raise SystemExit(f"FAILED: job {self.number}: {what}")
            time.sleep(0.1)

    def wait_for_start(self, number):
        """It is started for the `number`th time, and has made steps since."""
        self.wait(lambda: f", start {number}:" in self.output(), f"start {number}")
        before = len(self.lines())  # the last start's ranks have all ended
        self.wait(lambda: len(self.lines()) > max(before, 11), f"training in start {number}")

    def wait_for_end(self):
        self.wait(lambda: self.field("JobState") == "COMPLETED", "it ends well")


def left_alone(c):
    """The array template; its first task is what all interrupted runs are compared with."""
    number = c.train("array.sbatch", sbatch=["--array=1-2"])
    runs = []
    for seed in (1, 2):
        job = Job(c, f"{number}_{seed}", c.scratch / f"tutti-{number}" / f"seed-{seed}")
        job.wait_for_end()
        summary = job.summary()
        c.check(summary["ranks"] == NODES, f"seed {seed}: a rank on each node", job)
        c.check(summary["steps"] == STEPS and summary["verdict"] == "ok", f"seed {seed}", job)
        runs.append(job)
    digests = [job.summary()["state_digest"] for job in runs]
    c.check(digests[0] != digests[1], "each task has its own seed")
    return runs[0]


def signalled(c, alone):
    """Walltime, scancel --signal and a preemption: saved each time, no step lost or made twice."""
    early = ["--time=1", "--signal=USR1@20"]  # Slurm sends it 20 to 50 s before the minute ends
    job = Job(c, c.train("train.sbatch", sbatch=early, starts=3))
    job.wait_for_start(2)
    c.call("scancel", "--signal=USR1", job.number)
    job.wait_for_start(3)
    everything = ["--partition=urgent", f"--nodes={NODES}", "--exclusive", "--wrap", "true"]
    urgent = Job(c, c.call("sbatch", "--parsable", *everything, "--output=urgent.out"))
    urgent.wait_for_end()
    c.check(job.field("JobState") == "PENDING", "the urgent job ran in between", job)
    job.wait_for_end()
    c.check(job.field("Restarts") == "3", "three times requeued", job)
    c.check(job.output().count("stop requested") == 3, "three times saved", job)
    c.check(job.summary()["state_digest"] == alone.summary()["state_digest"], "equal bits", job)
    c.check(job.lines() == alone.lines(), "the log of a run that was left alone", job)


def kill_node(c, node):
    """Everything of a virtual node, its daemon first, as if its power were cut."""
    daemon = int((c.folder / f"spool/{node}.pid").read_text())
    uts = os.readlink(f"/proc/{daemon}/ns/uts")
    os.kill(daemon, signal.SIGKILL)
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/uts") == uts:
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass  # it has ended


def nodes_lost(c, alone):
    """A node is set down, another one dies: the run goes on with what is left."""
    job = Job(c, c.train("train.sbatch", "--checkpoint-every", "5", starts=2))
    job.wait_for_start(1)
    c.call("scontrol", "update", f"NodeName=n{NODES}", "State=DOWN", "Reason=test")
    job.wait_for_start(2)
    kill_node(c, f"n{NODES - 1}")
    job.wait_for_end()
    summary, reference = job.summary(), alone.summary()
    c.check(summary["ranks"] == NODES - 2, "it ends with the nodes that are left", job)
    said = [f"({ranks} data-parallel x" for ranks in (NODES, NODES - 1, NODES - 2)]
    c.check(all(text in job.output() for text in said), "4, 3, then 2 ranks", job)
    c.check(job.windows() == alone.windows(), "the same samples in every step", job)
    losses, alone_losses = job.losses(), alone.losses()
    apart = max(abs(losses[step] - alone_losses[step]) for step in alone_losses)
    accuracy, alone_accuracy = summary["test_accuracy"], reference["test_accuracy"]
    print(f"  loss at most {apart:.6f} apart, accuracy {accuracy:.4f} and {alone_accuracy:.4f}")
    c.check(apart <= LOSS_TOLERANCE, f"the loss of every step within {LOSS_TOLERANCE}", job)
    c.check(abs(accuracy - alone_accuracy) <= ACCURACY_TOLERANCE, "the test accuracy", job)


def drilled(c):
    """Drills with srun as the launcher, inside an allocation of all nodes."""
    names = [
        "nonfinite/exchange/bf16/rank3/drop",
        "throw/stage/rank2/staged",
        "die/publish/rank3",
        "stall/gather/rank0",
        "recompute/machine/loss/bf16/rank1",
    ]
    launcher = "srun --mpi=pmix --ntasks={ranks} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=3"
    said = c.call("salloc", "--quiet", f"--nodes={NODES}", c.tutti, "drill", *names,
                  "--data", c.scratch / "data", "--seconds", "15", "--launcher", launcher,
                  "--keep", c.scratch / "drills", check=False)
    c.check(f"all {len(names)} drills came to what they must" in said, f"drills by srun: {said}")


def without_requeue_exit(c):
    """Where slurm.conf has no RequeueExit the script asks for the restart, but not of a cancelled
    job, which saves all the same."""
    config = c.folder / "slurm.conf"
    config.write_text(config.read_text().replace("RequeueExit=85\n", ""))
    c.call("scontrol", "reconfigure")
    job = Job(c, c.train("train.sbatch", starts=2))
    job.wait_for_start(1)
    c.call("scancel", "--signal=USR1", job.number)
    job.wait_for_start(2)
    c.call("scancel", job.number)
    job.wait(lambda: "srun: error" in job.output().split(", start 2:")[1], "all ranks end")
    job.wait(lambda: job.field("JobState") != "COMPLETING", "the job ends")
    c.check(job.field("JobState") == "CANCELLED", "a cancelled job stays ended", job)
    c.check(job.output().count("stop requested") == 2, "saved at both", job)

    # Each task of an array asks for itself, also the one whose number is the whole array's.
    number = c.train("array.sbatch", sbatch=["--array=1-2", "--nodes=1"], starts=1)
    folder = c.scratch / f"tutti-{number}"
    tasks = [Job(c, f"{number}_{seed}", folder / f"seed-{seed}") for seed in (1, 2)]
    for task in tasks:
        task.wait_for_start(1)
        c.call("scancel", "--signal=USR1", task.number)
    for task in tasks:
        task.wait_for_end()
        c.check(task.field("Restarts") == "1", "a task is requeued once", task)
        c.check(task.output().count("stop requested") == 1, "a task saves once", task)
        c.check("invalid date" not in task.output(), "a task knows its end", task)
        c.check(task.summary()["steps"] == STEPS, "a task ends its run", task)


def test(options):
    c = Cluster(options)
    if not c.up:
        print(f"skipped: Slurm does not start here\n{c.said}")
        return SKIPPED
    start = time.monotonic()

    def timed(case, *more):
        begin = time.monotonic()
        result = case(c, *more)
        print(f"{case.__name__}: {time.monotonic() - begin:.0f} s", flush=True)
        return result

    alone = timed(left_alone)
    timed(drilled)
    timed(signalled, alone)
    timed(nodes_lost, alone)
    timed(without_requeue_exit)
    print(f"slurm: {time.monotonic() - start:.0f} s, {c.failures} failures")
    if not c.failures:
        shutil.rmtree(c.scratch, ignore_errors=True)
    return 1 if c.failures else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--templates", required=True)
    parser.add_argument("--inside", action="store_true", help="the namespace is made")
    options = parser.parse_args()
    if options.inside:
        return test(options)
    reason = why_no_cluster()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    # This process becomes unshare: when it ends, however, so does all in the namespace. The shell
    # is its first process and takes in what others leave behind.
    line = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]
    line += ['"$@" & wait $!', "sh", sys.executable, __file__, "--inside", *sys.argv[1:]]
    os.execvp(line[0], line)


if __name__ == "__main__":
    sys.exit(main())
