"""A build on Ray gives the bytes of a local one, and survives the death of its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.engines.options import EngineOptions
from pipeline.builder.limits import Limits
from pipeline.errors import ConfigError
from tests.builder.test_engine import die_once, fail_on_three
from tests.builder.test_references import NAMES, QUESTION, run_script, write_corpus, write_named
from tests.helpers import interpreters
from tests.helpers.builds import digests, run, write_jsonl
from tests.helpers.corpus import english, write_inputs
from tests.helpers.input_server import running_inputs
from tests.helpers.local_server import answering
from tests.helpers.text_samples import make_texts, write_texts

pytestmark = pytest.mark.stacks


def test_a_build_on_a_ray_of_its_own_starts_it_once_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of a cluster that was; only --ray-address names one
    started: list[dict[str, Any]] = []
    init = ray.init

    def noted(**options: Any) -> Any:
        started.append(options)
        return init(**options)

    monkeypatch.setattr(ray, "init", noted)
    inputs = write_inputs(tmp_path / "in", 100)
    run(inputs, tmp_path / "local")
    run(inputs, tmp_path / "ray", engine="ray", workers=2)
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")
    assert len(started) == 1
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster that runs beside these tests."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    running = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield running.address
    running.shutdown()


def test_sigterm_reaches_the_build_and_not_ray_alone(cluster: str) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with EngineOptions(engine="ray", workers=2, ray_address=cluster).open() as engine:
            os.kill(os.getpid(), signal.SIGTERM)
            assert dict(engine.map(abs, [-3])) == {0: 3}
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


@pytest.mark.nightly
def test_a_build_of_urls_with_a_quota_gives_the_same_bytes_on_ray(cluster: str, tmp_path: Path) -> None:
    with running_inputs() as server:
        for number in range(4):
            path = write_texts(tmp_path / f"a{number}.jsonl", make_texts(60, number))
            server.files[path.name] = path.read_bytes()
        urls = [server.url(name) for name in sorted(server.files)]
        limits = Limits(smallest_unit_bytes=4_000, unit_bytes=4_000)
        settings: dict[str, Any] = {
            "tokenizer": "bytes",
            "rules": (),
            "dedup": False,
            "max_tokens": "9000",
            "limits": limits,
        }
        run(urls, tmp_path / "local", **settings)
        run(urls, tmp_path / "ray", engine="ray", workers=2, ray_address=cluster, **settings)
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_a_unit_whose_ray_worker_is_killed_is_run_again(cluster: str, tmp_path: Path) -> None:
    units = [str(tmp_path / str(k)) for k in range(2)]
    with EngineOptions(engine="ray", workers=2, ray_address=cluster).open() as engine:
        assert sorted(engine.map(die_once, units)) == list(enumerate(units))
        with pytest.raises(ConfigError, match="three is too many"):
            list(engine.map(fail_on_three, range(9)))


def test_ray_workers_in_another_directory_load_what_the_build_names(cluster: str, tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "in")
    here = write_named(tmp_path / "here", 200, QUESTION, 1)
    local = run_script(here, tmp_path / "local", source, *NAMES)
    assert local.returncode == 0, local.stderr
    on_ray = run_script(here, tmp_path / "ray", source, *NAMES, "--engine=ray", f"--ray-address={cluster}")
    assert on_ray.returncode == 0, on_ray.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_transforms_fields_scores_and_passages_give_the_same_bytes_on_ray(cluster: str, tmp_path: Path) -> None:
    from tests.builder.test_transforms import key, make, write_module, write_records, write_scores

    notice = english(1_000, 8)
    texts = [english(k, 20) + " rutabaga" * (k % 7 == 0) + notice * (k % 5 == 0) for k in range(120)]
    source = write_records(tmp_path / "in.jsonl", texts, n=list(range(120)))
    home = write_module(tmp_path / "home")
    settings: dict[str, Any] = {
        "transforms": [f"{home}/own_transforms:{name}" for name in ("drop_blocked", "halves", "Count")],
        "scores": write_scores(
            tmp_path / "s.parquet", {"key": [key(t) for t in texts], "q": [k % 5 for k in range(120)]}
        ),
        "where": "n >= 10",
        "keep_fields": "n:int,q:float",
        "dedup_passages": 30,
        "decontaminate": [str(write_jsonl(tmp_path / "quiz.jsonl", [english(30, 2)]))],
        "limits": Limits(partition_records=30, batch_records=10, bucket_hashes=500),
    }
    local = make(source, tmp_path / "local", **settings)
    assert local.counts["passages"]["cut"] > 10
    make(source, tmp_path / "ray", engine="ray", workers=2, ray_address=cluster, **settings)
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_a_client_of_ray_that_cannot_connect_is_told_what_it_needs() -> None:
    """The server begins as those of Ray do and says no more. Without grpc, Ray's client does not even try."""
    pytest.importorskip("ray")
    code = (
        "import sys; from pipeline.builder.engines.options import EngineOptions; from pipeline.errors import ConfigError\n"
        "try: EngineOptions(engine='ray', workers=1, ray_address=sys.argv[1]).open()\n"
        "except ConfigError as error: print(error)"
    )
    with answering(b"\0\0", b"\6\4\0\0\0\0\0") as address:
        done = interpreters.run("-c", code, f"ray://{address}")
    assert f"--ray-address ray://{address}: something answers there, but Ray cannot connect to it (" in done.stdout, (
        done.stderr
    )
    assert "pip install 'ray[client]'" in done.stdout
