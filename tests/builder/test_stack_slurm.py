"""The job script of docs/clusters.md on a Slurm of one node: its tasks are raylets, and a job that is ended goes on."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.builds import ROOT, digests, run_plain
from tests.helpers.corpus import write_inputs
from tests.helpers.documentation import PAGES

pytestmark = pytest.mark.stacks

PROGRAMS = ("munged", "slurmctld", "slurmd")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=p Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Slurm of this machine, by the variables with which its commands find it."""
    pytest.importorskip("ray")
    if any(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None for name in PROGRAMS) or os.geteuid():
        pytest.skip("needs root, and slurmctld, slurmd and munged: apt-get install slurmctld slurmd slurm-client munge")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    with socket.socket() as one, socket.socket() as other:
        for unused in (one, other):
            unused.bind(("127.0.0.1", 0))
        ports = [unused.getsockname()[1] for unused in (one, other)]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname(), folder=folder, ports=ports))
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "SLURM_CONF": str(conf),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": str(ROOT),
    }
    files = ("socket=munge.sock", "key-file=key", "pid-file=munged.pid", "log-file=munged.log", "seed-file=seed")
    munged = [re.sub("=", f"={folder}/", f"--{file}", count=1) for file in files]
    commands = (["munged", "--foreground", "--force", *munged], ["slurmctld", "-D"], ["slurmd", "-D"])
    with ExitStack() as running, open(folder / "log", "wb") as log:
        for command in commands:
            process = running.enter_context(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
            running.callback(process.kill)
            time.sleep(1)
        wait_until(lambda: " idle " in ask(variables, "sinfo", "--noheader"), 60)
        yield variables
        ask(variables, "scancel", "--full", "--user=root")
        wait_until(lambda: not ask(variables, "squeue", "--noheader"), 180)


def ask(variables: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30).stdout


def wait_until(is_true: Callable[[], object], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.5)


SLOW = """
import time
def slow(document):
    time.sleep(0.01)
    return document
"""


def test_the_job_script_builds_on_two_raylets_and_goes_on_after_sigterm(slurm: dict[str, str], tmp_path: Path) -> None:
    write_inputs(tmp_path / "raw", 900)
    (tmp_path / "own_slow.py").write_text(SLOW)
    transform = f"{tmp_path}/own_slow:slow"
    run_plain(tmp_path / "raw", tmp_path / "local", transforms=[transform])
    [script] = re.findall(r"```bash\n( *#!/bin/bash\n.*?)```", PAGES["docs/clusters.md"], re.DOTALL)
    settings = f"--tokenizer bytes --rules none --val-fraction 0 --transforms {transform}"
    (tmp_path / "job.sh").write_text(
        textwrap.dedent(script).replace(
            "/shared/raw --output /shared/set", f"{tmp_path}/raw --output {tmp_path}/set {settings}"
        )
    )
    sizes = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", f"--output={tmp_path}/log")
    job = ask(slurm, "sbatch", "--parsable", *sizes, str(tmp_path / "job.sh")).strip()
    ingest = tmp_path / "set" / ".build" / "ingest"
    wait_until(lambda: any(ingest.glob("*/[0-9]*")), 120)  # SIGTERM in the start of Ray ends that, without a word
    ask(slurm, "scancel", "--batch", "--signal=TERM", job)  # as Slurm does ahead of the time limit
    wait_until((tmp_path / "set" / "manifest.json").exists, 240)
    log = (tmp_path / "log").read_text()
    assert "interrupted" in log, log
    assert digests(tmp_path / "set") == digests(tmp_path / "local")
