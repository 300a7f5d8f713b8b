"""The Hugging Face hub: its API returns a revision's commit and files, and redirects to the bytes of a file.

``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_TOKEN_PATH`` and ``HF_HOME`` have the same meaning as in Hugging Face's libraries.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import MissingObjectError, StorageError
from ...objects.cache import Cache, object_id
from ...objects.http import Answer, same_server
from ...objects.range_answers import RangeAnswer, range_header
from ...objects.remote_object import RemoteObject
from ...objects.request_options import RequestOptions, RetryableError, UnconfirmedError, plain_version
from ...objects.retries import retrying
from ...user_cache import default_directory
from .input_file import StoredObject

_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_EXPIRED = (401, 403, 404, 410)
_MOST_CARD_BYTES = 16 << 20


class HubFile(NamedTuple):
    """A file of a repository. ``oid`` is its hash in Git; ``sha256`` is known for large files only."""

    path: str
    size: int
    oid: str
    sha256: str


class Repository(NamedTuple):
    """A dataset of the hub at one commit."""

    id: str
    commit: str

    @property
    def url(self) -> str:
        return f"hf://datasets/{self.id}@{self.commit}"


def endpoint() -> str:
    """Return the address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def token() -> str:
    """Return the user's token, or ''."""
    if value := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return value.strip()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, RuntimeError):  # without a home directory, ~ is a RuntimeError
        return ""


def pin(id: str, revision: str, requests: RequestOptions) -> Repository:
    """Return a dataset at the current commit of a revision."""
    quoted = urllib.parse.quote(revision, safe="")
    answer = _api(f"{endpoint()}/api/datasets/{id}/revision/{quoted}", f"hf://datasets/{id}@{revision}", requests)[0]
    return Repository(id, str(answer["sha"]))


def list_files(repository: Repository, requests: RequestOptions) -> list[HubFile]:
    """Return all files of a repository. A request lists a thousand files, and one rank of a machine makes all requests.

    The listing is cached, because the files of a commit never change.
    """

    def fetch(missing: object) -> list[bytes | memoryview]:
        return [json.dumps(_ask_for_files(repository, requests), separators=(",", ":")).encode()]

    def is_sound(number: int, raw: bytes) -> bool:
        return _parse_listing(raw) is not None

    directory, id = default_directory(), object_id(endpoint(), *repository)
    (raw,) = fetch(0) if directory is None else Cache(directory).read_all(id, ["listing.json"], fetch, is_sound)
    return _parse_listing(bytes(raw)) or []


def _parse_listing(raw: bytes) -> list[HubFile] | None:
    """Return the files of a cached listing, or None if it is damaged."""
    try:
        return [HubFile(path, int(size), oid, sha256) for path, size, oid, sha256 in json.loads(raw)]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _ask_for_files(repository: Repository, requests: RequestOptions) -> list[HubFile]:
    page = f"{endpoint()}/api/datasets/{repository.id}/tree/{repository.commit}?recursive=true&expand=false"
    files: list[HubFile] = []
    while page:
        entries, link = _api(page, repository.url, requests)
        for entry in entries:
            if entry["type"] == "file":
                large = entry.get("lfs") or {}
                files.append(HubFile(entry["path"], int(entry["size"]), str(entry["oid"]), str(large.get("oid", ""))))
        match = _NEXT.search(link)
        page = urllib.parse.urljoin(page, match[1]) if match else ""
    return files


def read_small(repository: Repository, file: HubFile, requests: RequestOptions) -> bytes:
    """Return a small file, such as a dataset's card."""
    size = min(file.size, _MOST_CARD_BYTES)
    return HubObject(stored_object(repository, file), requests).read(0, size)


def stored_object(repository: Repository, file: HubFile) -> StoredObject:
    """Return a file as a `StoredObject`, whose version is the hash of the contents."""
    return StoredObject(f"{repository.url}/{file.path}", file.size, file.sha256 or file.oid, file.sha256)


def _api(url: str, shown: str, requests: RequestOptions) -> tuple[Any, str]:
    """Return the JSON of an API call, and its ``Link`` header."""

    def ask() -> tuple[Any, str]:
        with Answer(url, requests, _authorization(url), patient=True) as answer:
            if answer.status != 200:
                raise UnconfirmedError(refused(answer, shown))
            try:
                return json.loads(answer.body()), answer.headers.get("Link", "")
            except ValueError as error:
                raise RetryableError(f"a response that is not JSON: {error}") from None

    return retrying(ask, shown, "list it", requests)


def _authorization(url: str) -> dict[str, str]:
    """Return the header with the user's token, for the hub's own server only."""
    secret = token() if same_server(url, endpoint()) else ""
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def refused(answer: Answer, shown: str) -> StorageError:
    """Return the error for a request that the hub refused, with the hub's words and the cure."""
    code = answer.headers.get("X-Error-Code", "")
    words = answer.headers.get("X-Error-Message") or f"{answer.status} {answer.reason}"
    id = shown.removeprefix("hf://datasets/").partition("@")[0]
    page = f"{endpoint()}/datasets/{id}"
    token_state = "with the token that is set" if token() else "and HF_TOKEN is not set"
    kind = StorageError
    if code == "GatedRepo":
        cure = f"ask for access at {page}, and set HF_TOKEN to a token of that account ({token_state})"
    elif code == "RepoNotFound" or (answer.status in (401, 403) and not code):
        kind, cure = MissingObjectError, f"check the name; if the dataset is private, set HF_TOKEN ({token_state})"
    elif code == "RevisionNotFound":
        kind, cure = MissingObjectError, f"give a branch, a tag or a commit that {page} has, as in {id}@main"
    elif code == "EntryNotFound" or answer.status == 404:
        kind, cure = MissingObjectError, f"check the path; the files are listed at {page}/tree/main"
    else:
        cure = f"look at {page}"
    return kind(f"{shown}: the hub says: {words}; {cure}")


class HubObject(RemoteObject):
    """A file of the hub, read by ranges. The address to which the hub redirects is used until it expires."""

    def __init__(self, stored: StoredObject, requests: RequestOptions) -> None:
        # The commit fixes the version; the redirect names the commit, and `_check_commit` compares it.
        super().__init__(stored.url, requests, lambda size, _: stored.difference(size, ""))
        self._stored = stored
        id, _, rest = stored.url.removeprefix("hf://datasets/").partition("@")
        self._commit, _, path = rest.partition("/")
        self._resolve = f"{endpoint()}/datasets/{id}/resolve/{self._commit}/{urllib.parse.quote(path)}"

    def pieces(self, start: int, stop: int, *, whole: bool = False) -> Generator[bytes, None, None]:
        if start < stop:
            with self.request(self._resolve, start, stop) as answer:
                yield from answer.pieces()

    def request(self, url: str, start: int, stop: int) -> RangeAnswer:
        targets = _targets(url)
        with targets.lock:  # one of several threads asks for the address
            if not (target := targets.url):
                answer = self._get(url, start, stop, follow=False)
                self._check_commit(answer)
                if answer.redirect is None:
                    return self._range(answer, start, stop)
                target = targets.url = answer.redirect
                answer.drain()
        answer = self._get(target, start, stop)
        if answer.status in _EXPIRED:
            with answer, targets.lock:
                if targets.url == target:
                    targets.url = ""
            raise RetryableError(f"the address that the hub gave answers {answer.status}: it has expired")
        return self._range(answer, start, stop)

    def _get(self, url: str, start: int, stop: int, *, follow: bool = True) -> Answer:
        headers = {**_authorization(url), **range_header(start, stop)}
        return Answer(url, self.requests, headers, follow=follow, patient=not follow)

    def _range(self, answer: Answer, start: int, stop: int) -> RangeAnswer:
        if answer.status not in (200, 206):
            with answer:
                raise UnconfirmedError(refused(answer, self.url))
        return RangeAnswer(answer, self.url, start, stop, self._check)

    def _check_commit(self, answer: Answer) -> None:
        """Raise an error if the commit or the file is not the one that was listed."""
        commit = answer.headers.get("X-Repo-Commit") or self._commit
        mark = plain_version(answer.headers.get("X-Linked-Etag") or "")
        version = mark if commit == self._commit else f"commit {commit}"
        if (error := self._stored.difference(self._stored.size, version)) is not None:
            with answer:
                raise UnconfirmedError(error)


class _Target:
    """The address of a file's bytes, for this process; '' if the hub must be asked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.url = ""


@functools.lru_cache(maxsize=4096)
def _targets(url: str) -> _Target:
    return _Target()
