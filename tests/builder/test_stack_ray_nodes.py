"""Nodes of a Ray cluster: what they lack is named before the first unit, what dies ends a build in one line, and it goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.builder.engines.local import Engine
from pipeline.builder.engines.options import EngineOptions
from pipeline.errors import BuildError
from tests.builder.test_engine import die_always, die_once
from tests.helpers import interpreters
from tests.helpers.builds import ROOT, digests, run_plain
from tests.helpers.corpus import write_inputs

pytestmark = pytest.mark.stacks

HOLD = """
import sys, time, ray
from pathlib import Path
ray.init(address=sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=1)
def hold(end):
    while not Path(end).exists():
        time.sleep(0.1)
held = [hold.remote(sys.argv[2]) for _ in range(int(ray.cluster_resources()["CPU"]))]
while ray.available_resources().get("CPU"):
    time.sleep(0.2)
print("held", flush=True)
ray.get(held)
"""


class Nodes(NamedTuple):
    """Three raylets on this machine; what lies below ``hidden`` is not there for the last one."""

    address: str
    hidden: Path
    raylets: dict[str, int]  # their pids


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    pytest.importorskip("ray")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs rights that this process has not")
    import ray
    from ray.cluster_utils import Cluster

    hidden = tmp_path_factory.mktemp("hidden")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        with blind_node(cluster.address, hidden):
            ray.init(address=cluster.address, log_to_driver=False)
            while len([node for node in ray.nodes() if node["Alive"]]) < 3:
                time.sleep(0.2)
            ray.shutdown()
            started = {"head": cluster.head_node, "raylet": second}
            pids = {name: node.all_processes["raylet"][0].process.pid for name, node in started.items()}
            pids["gcs"] = cluster.head_node.all_processes["gcs_server"][0].process.pid
            yield Nodes(cluster.address, hidden, pids)
    finally:
        cluster.shutdown()


@contextmanager
def blind_node(address: str, hidden: Path) -> Iterator[None]:
    """Run a node whose file system has nothing below ``hidden``."""
    code = "from ray.scripts.scripts import main; main()"
    start = f"mount -t tmpfs none {hidden} && exec {sys.executable} -c '{code}' start --address={address} --num-cpus=1 --block"
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


def test_a_node_that_does_not_see_output_or_input_is_named_or_left_out(nodes: Nodes, tmp_path: Path) -> None:
    inputs, hidden_inputs = write_inputs(tmp_path / "in", 60), write_inputs(nodes.hidden / "in", 60)
    run_plain(inputs, tmp_path / "local")
    options: dict[str, Any] = {"engine": "ray", "ray_address": nodes.address, "workers": None}
    output = nodes.hidden / "ray"
    with pytest.raises(BuildError, match=r"1 of 3 nodes .*\n  node .*: .*\.build: No such file .* give an --output"):
        run_plain(inputs, output, **options)
    assert not list((output / ".build").glob("*probe*"))
    with pytest.raises(
        BuildError, match=r"1 of 3 nodes .*\n  node .*/hidden0/in/.*: cannot be read any more.*No such file"
    ):
        run_plain(hidden_inputs, tmp_path / "ray", **options)
    with pytest.warns(UserWarning, match="1 of 3 nodes are left out"):
        run_plain(inputs, output, ray_skip_bad_nodes=True, **options)
    assert digests(output) == digests(tmp_path / "local")
    assert json.loads((output / "run.json").read_text())["workers"] == 2  # the CPUs of the nodes that are left


def test_a_node_with_other_code_of_this_package_is_named(nodes: Nodes, tmp_path: Path) -> None:
    """The node that does not see this copy of the package finds the one that is installed."""
    for folder in ("pipeline", "filters"):
        shutil.copytree(ROOT / folder, nodes.hidden / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (nodes.hidden / "pipeline" / "added.py").write_text("")
    code = (
        "import sys; from pathlib import Path; from pipeline.builder.engines.options import EngineOptions\n"
        "try: EngineOptions(engine='ray', workers=None, ray_address=sys.argv[1]).open(shared=Path(sys.argv[2]))\n"
        "except Exception as error: print(error)"
    )
    command = [sys.executable, "-c", code, nodes.address, str(tmp_path)]
    done = subprocess.run(command, cwd=nodes.hidden, capture_output=True, text=True, timeout=120)
    assert "1 of 3 nodes" in done.stdout, done.stderr
    assert re.search(
        r"node .*: shardwright \S+ \(code (\w+)\), but this build runs \S+ \(code (?!\1)\w+\); install", done.stdout
    )


def test_a_cluster_without_a_free_cpu_is_waited_for_with_a_word(nodes: Nodes, tmp_path: Path) -> None:
    end = tmp_path / "end"

    def free_after(warned: pytest.WarningsRecorder) -> None:
        while not (end.exists() or any("no unit has begun" in str(each.message) for each in warned.list)):
            time.sleep(0.1)
        end.touch()

    def run_units(engine: Engine, warned: pytest.WarningsRecorder) -> None:
        threading.Thread(target=free_after, args=(warned,), daemon=True).start()
        assert sorted(engine.map(abs, [-3, -4])) == [(0, 3), (1, 4)]

    with subprocess.Popen([sys.executable, "-c", HOLD, nodes.address, str(end)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        try:
            with pytest.warns(UserWarning, match=r"cluster has 3 CPUs.* --workers 4"):
                engine = EngineOptions(engine="ray", workers=4, ray_address=nodes.address).open()
            assert other.stdout.readline() == b"held\n"
            said = r"no unit has begun for \d\d s: .* 3 CPUs, 0 of them free; -[34] waits for one, and 1 units after it"
            with engine, pytest.warns(UserWarning, match=said) as warned:
                run_units(engine, warned)
        finally:
            end.touch()


def test_a_unit_whose_worker_dies_is_run_again_or_named(nodes: Nodes, tmp_path: Path) -> None:
    retries: list[tuple[int, str]] = []
    ran: list[str] = []
    with EngineOptions(engine="ray", workers=2, ray_address=nodes.address, unit_tries=2).open() as engine:
        engine.on_retry = lambda index, reason: retries.append((index, reason))
        engine.on_node = lambda index, node, seconds: ran.append(node)
        assert list(engine.map(die_once, [str(tmp_path / "mark")])) == [(0, str(tmp_path / "mark"))]
        assert [index for index, _ in retries] == [0]
        assert re.match(r"WorkerCrashedError.*: The worker died", retries[0][1])
        assert re.fullmatch(r"[\d.]+ \(\w{8}\)", ran[0])
        with pytest.raises(BuildError, match=r"worker died 2 times .*the unit \(WorkerCrashedError"):
            list(engine.map(die_always, ["the unit"]))


KILLS = """
import os, signal, time
from pathlib import Path


def kills(document):
    for order in Path(__file__).parent.glob("kill-*"):
        _, whom, pid = order.name.split("-")
        while whom == "parent" and os.getppid() != int(pid) and order.exists():
            time.sleep(0.01)  # so that a unit is left for the node that is to end
        if order.exists():
            order.unlink(missing_ok=True)
            if whom != "self":
                os.kill(int(pid), signal.SIGKILL)
            if whom != "other":  # with a raylet its workers end, as with a machine
                os.kill(os.getpid(), signal.SIGKILL)
    return document
"""
BUILD = """
import os, sys
from pathlib import Path
from pipeline.builder.limits import Limits
from pipeline.errors import ShardwrightError
from tests.helpers.builds import run_plain

source, output, transform, kill, address = sys.argv[1:]
for order in kill.replace("driver", str(os.getpid())).split():
    (Path(transform).parent / order).touch()
cluster = {"engine": "ray", "workers": None, "ray_address": address, "ray_skip_bad_nodes": True} if address else {}
limits = Limits(smallest_unit_bytes=4_000, unit_bytes=4_000)
try:
    run_plain(source, output, transforms=[transform], limits=limits, **cluster)
except ShardwrightError as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.parametrize(
    "victim",
    [
        "driver",
        "raylet",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("worker", "driver's raylet", "head")),
    ],
)
def test_a_build_has_the_same_bytes_whatever_is_killed(nodes: Nodes, tmp_path: Path, victim: str) -> None:
    orders = {
        "worker": "kill-self-0",
        "driver": "kill-other-driver",
        "raylet": f"kill-parent-{nodes.raylets['raylet']}",
        "driver's raylet": f"kill-other-{nodes.raylets['head']}",
        # Last: what is left of the cluster takes no other build.
        "head": f"kill-other-{nodes.raylets['gcs']} kill-other-{nodes.raylets['head']}",
    }
    write_inputs(tmp_path / "in", 60)
    (tmp_path / "own_kills.py").write_text(KILLS)
    transform = f"{tmp_path}/own_kills:kills"

    def build(output: str, kill: str = "", address: str = "") -> subprocess.CompletedProcess[str]:
        return interpreters.run("-c", BUILD, tmp_path / "in", tmp_path / output, transform, kill, address, timeout=150)

    assert build("local").returncode == 0
    done = build("ray", orders[victim], nodes.address)
    assert not list(tmp_path.glob("kill-*"))
    if victim == "driver":
        assert done.returncode == -signal.SIGKILL
        done = build("ray", "", nodes.address)
    elif victim == "head":
        assert done.returncode == 1
        assert re.search(r"error: Ray ended the build: .*run the same command again", done.stderr)
        done = build("ray")
    elif victim == "driver's raylet":
        assert done.returncode == 1
        assert re.search(r"error: Ray ended the build: \w+Error: .*run the same command again", done.stderr)
        done = build("ray")
    else:
        retries = json.loads((tmp_path / "ray" / "run.json").read_text())["retries"]
        assert {(retry["stage"], retry["unit"][:4]) for retry in retries} == {("ingest", "unit")}
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")
