"""Nodes of a Ray cluster: what they lack is named before the first unit, what dies ends a build in one line, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.engine.engines import open_engine
from pipeline.errors import BuildError
from tests import interpreters
from tests.builds import digests, run
from tests.corpus import write_inputs

pytestmark = pytest.mark.stacks

HOLD = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=1)
def hold(seconds):
    time.sleep(seconds)
held = [hold.remote(float(sys.argv[2])) for _ in range(int(ray.cluster_resources()["CPU"]))]
while ray.available_resources().get("CPU"):
    time.sleep(0.2)
print("held", flush=True)
ray.get(held)
"""


@contextmanager
def running_cluster(cpus: int) -> Iterator[Any]:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    running = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    try:
        yield running
    finally:
        if ray.is_initialized():
            ray.shutdown()
        running.shutdown()


@contextmanager
def blind_node(address: str, hidden: Path) -> Iterator[None]:
    """Run a node whose file system has nothing below ``hidden``."""
    code = "from ray.scripts.scripts import main; main()"
    start = f"mount -t tmpfs none {hidden} && exec {sys.executable} -c '{code}' start --address={address} --num-cpus=1 --block"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs rights that this process has not")
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", start],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as node:
        try:
            yield
        finally:
            os.killpg(node.pid, signal.SIGKILL)


def test_a_node_that_does_not_see_the_output_is_named_or_left_out(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "in", 60)
    run(inputs, tmp_path / "local")
    with running_cluster(1) as cluster, blind_node(cluster.address, tmp_path):
        import ray

        ray.init(address=cluster.address, log_to_driver=False)
        while len([node for node in ray.nodes() if node["Alive"]]) < 2:
            time.sleep(0.2)
        ray.shutdown()
        options: dict[str, Any] = {"engine": "ray", "workers": 2, "ray_address": cluster.address}
        with pytest.raises(
            BuildError, match=r"1 of 2 nodes .*\n  node .*: .*\.build: No such file .* give an --output"
        ):
            run(inputs, tmp_path / "ray", **options)
        assert not list((tmp_path / "ray" / ".build").glob("*probe*"))
        with pytest.warns(UserWarning, match="1 of 2 nodes are left out"):
            run(inputs, tmp_path / "ray", ray_skip_bad_nodes=True, **options)
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_a_cluster_without_a_free_cpu_is_waited_for_with_a_word() -> None:
    with running_cluster(1) as cluster:
        command = [sys.executable, "-c", HOLD, cluster.address, "25"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            with (
                pytest.warns(UserWarning, match=r"no CPU is free for 1[0-9] s: the cluster has 1 CPUs, 0 of them free"),
                open_engine("ray", workers=1, ray_address=cluster.address) as engine,
            ):
                assert list(engine.map(abs, [-3])) == [(0, 3)]


LOSES_ITS_RAYLET = """
import threading, time
import psutil
from pipeline.builder.engine.ray import RayEngine
from pipeline.errors import BuildError

def unit(number):
    time.sleep(2)
    return number

def kill():
    time.sleep(1)
    for process in psutil.Process().children(recursive=True):
        if process.name() == "raylet":
            process.kill()

engine = RayEngine(1, None)
threading.Thread(target=kill, daemon=True).start()
try:
    print(list(engine.map(unit, [1, 2, 3])))
except BuildError as error:
    print(error)
"""


def test_a_driver_that_loses_its_own_raylet_says_so_in_one_line() -> None:
    done = interpreters.run("-c", LOSES_ITS_RAYLET, timeout=120)
    assert done.returncode == 0
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Ray ended the build: LocalRayletDiedError: ")
    assert last.endswith("run the same command again, with this cluster, another one or --engine local")
