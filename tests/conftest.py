"""Fixtures that several test files share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

from pipeline.text.tokens.tokenizer import Tokenizer, train_tokenizer
from tests.helpers.builds import run
from tests.helpers.commands import Says, says_by
from tests.helpers.corpus import write_inputs
from tests.helpers.faulty_server import FaultyServer, running_server
from tests.helpers.interpreters import LOADED
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.tokenizer_samples import CORPUS, train

# No test depends on how fast the machine is, nor on luck: each run draws the same examples, but that of `make test-nightly`,
# which draws more.
settings.register_profile("quick", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
# For a fault that is seeded: the first example that fails is enough, so none is made smaller.
settings.register_profile("fault", settings.get_profile("quick"), phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# A small build calls fsync a hundred times, of 1 to 10 ms each: half of its time. No test can make what it guards against, a
# machine that loses power. The call still needs an open descriptor. Commands that tests start call fsync as it is.
os.fsync = os.fstat  # type: ignore[assignment]

# A shell that starts a command in the background has it ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What processes of the start method "forkserver" find imported: each then starts in milliseconds, not in seconds. They
# get their arguments pickled, as spawned ones do.
multiprocessing.set_forkserver_preload(list(LOADED))

# The rooms whose tests are fast run first, so that the first failure comes soon; doctests run before them. In a room the
# largest file runs first: one that began last would keep one process of a run at work while the others have nothing to do.
ROOMS = "objects shards filters exchange finished cli house scripts text builder stream".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rooms = {Path(__file__).parent / room: number for number, room in enumerate(ROOMS)}
    sizes = {path: path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (rooms.get(item.path.parent, -1), -sizes[item.path], item.path))
    for item in items:
        slow = item.get_closest_marker("stacks") or item.get_closest_marker("nightly")
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


class OverdueError(BaseException):
    """A test has no time left. Hypothesis takes pytest's own exception for a failure, and runs its example again."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, object, object]:
    is_set = yield
    end: Any = signal.getsignal(signal.SIGALRM)

    def end_test(number: int, frame: FrameType | None) -> None:
        try:
            end(number, frame)
        except pytest.fail.Exception as failure:
            raise OverdueError(failure) from None

    signal.signal(signal.SIGALRM, end_test)
    return is_set


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text kept beside the checkout for measuring; tests that need it skip where it is absent."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real-text corpus beside this checkout")
    return path


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of four shards, one of them of a single document, which tests leave as it is."""
    directory = tmp_path_factory.mktemp("dataset") / "data"
    write_dataset(directory, [make_documents(n, seed=n) for n in (30, 1, 25, 40)])
    return directory


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    """A web server of files, which fails as it is told to."""
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Give the options by which s3fs reaches a real server on this machine."""
    pytest.importorskip("s3fs")
    werkzeug = pytest.importorskip("werkzeug.serving")
    moto = pytest.importorskip("moto.server")
    application, alone = moto.DomainDispatcherApplication(moto.create_backend_app), threading.Lock()

    def serve(environ: Any, start_response: Any) -> list[bytes]:
        with alone:  # moto keeps the bucket of a request in an object that all threads share
            return list(application(environ, start_response))

    server = werkzeug.make_server("127.0.0.1", 0, serve, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{server.port}"}}
    server.shutdown()
    thread.join()


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """Run a command, require its exit status, and return what it printed."""
    return says_by(capsys)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of documents with known faults, as `corpus.documents` makes them."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def built(inputs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that `builds.run` makes of ``inputs``, which tests leave as it is."""
    output = tmp_path_factory.mktemp("built") / "shards"
    run(inputs, output)
    return output


@pytest.fixture(scope="session")
def trained() -> Tokenizer:
    """A tokenizer of ours."""
    return train_tokenizer(CORPUS, 500)


@pytest.fixture(scope="session")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Definitions of tokenizers of other kinds, by kind."""
    folder = tmp_path_factory.mktemp("definitions")
    return {kind: train(kind, folder / f"{kind}.json") for kind in ("unigram", "wordpiece", "llama")}
