"""Turns what the user names into input files, in an order that depends on names alone."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import InputError, did_you_mean
from ..notices import warn
from ..objects.access import Access
from ..objects.urls import identity, is_http, is_remote, local_name, shown
from ..paths import is_hidden, named_twice, natural_key, read_once, real_paths, shortened, special_kind
from ..shards.manifest import is_dataset
from ..weak_methods import weak_lru_cache
from .fields import surrogate_in
from .formats import COMPRESSED_TIMES, ENDINGS, find_format, format_named, format_of, is_named_compressed
from .storage.input_file import Credentials, InputFile, as_input, name_apart
from .storage.listing import WILDCARD, expand_braces, list_urls
from .storage.saved_datasets import saved_only

__all__ = ["InputFile", "find_inputs", "fingerprint"]

_SOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)=(.+)", re.DOTALL)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w-][\w.-]*(:[\w.-]+)*")
_MIB = 1 << 20
_LONG_TEXT = 10_000_000  # bytes


def find_inputs(
    specs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    access: Access | None = None,
    format: str = "",
    commits: dict[str, str] | None = None,
) -> list[InputFile]:
    """Return the input files that ``specs`` name, in the order of the specs, sorted naturally within each.

    A spec is a file, a directory (read with all that lies below), a glob (``**`` too) or brace pattern, a url of one
    (``https://``, ``s3://``, ``gs://``, ``az://``, ``hf://``; ``access`` says how it is reached, ``commits`` which commits
    revisions of the hub stand for, those that are looked up included), or ``NAME=`` and one of
    these, which names the source. A spec that is a path or matches files as a whole names no
    source, so ``date=*/x.jsonl`` are the partitions of that name where there are any. Datasets of shards below a
    directory or pattern are left out with one warning that counts them, and so is ``output``, the directory that is
    built. Raises ``InputError`` for what is not there or cannot be read, for a dataset or ``output`` named itself, for a
    spec that yields nothing or that is both a path and a source's, for a file that is named twice, and for one that is
    named itself and has an unknown ending; such files in a directory or a glob are left out with one warning that names them,
    and so are hidden files and folders, and links to files that are read.
    """
    if isinstance(specs, str | os.PathLike):
        specs = [specs]
    if format != "":
        format_named(format)  # before files are looked for
    commits = {} if commits is None else commits
    finder = _Finder(output, Credentials(access=access or Access()), format, commits)
    found = [file for spec in specs for file in finder.expand(os.fspath(spec))]
    _check_names(found)
    _refuse_twice(found)
    return [replace(file, forced_format=format) for file in found] if format else found


def join_inputs(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files that several calls of `find_inputs` gave, with names that tell them apart.

    Raises ``InputError`` where two of them are one. A warning names files that are one long document each.
    """
    _refuse_twice(files)
    joined = name_apart(files)
    _warn_of_long_texts(joined)
    return joined


def _refuse_twice(files: Sequence[InputFile]) -> None:
    """Raise ``InputError`` where two of the files are one: by other spellings, or a link.

    Urls that differ in their queries are two files.
    """
    local = iter(real_paths(str(file.path) for file in files if file.stored is None))
    identities = [
        next(local) if file.stored is None else identity(file.credentials.url_of(file.stored)) for file in files
    ]
    if (message := named_twice([str(file.path) for file in files], identities)) is not None:
        raise InputError(message)


def _check_names(files: Sequence[InputFile]) -> None:
    """Raise ``InputError`` for a file whose path is not UTF-8: ids and provenance could not name it."""
    for file in files:
        path = str(file.path) if file.stored is not None else os.path.abspath(file.path)
        if surrogate_in(path) is not None:
            shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise InputError(
                f"{shown}: this path is not UTF-8, so ids and errors cannot name it; rename the file or folder"
            )


def _warn_of_long_texts(files: Iterable[InputFile]) -> None:
    """Warn once where files make one document each that is longer than documents are: some formats read them in parts."""
    sizes = {
        str(file.path): file.size * (COMPRESSED_TIMES if is_named_compressed(file) else 1)
        for file in files
        if format_of(file).one_document
    }
    long = {path: size for path, size in sizes.items() if size > _LONG_TEXT}
    if long:
        path, size = next(iter(long.items()))
        others = f", and so are {len(long) - 1} more long files" if len(long) > 1 else ""
        warn(
            f"{path}: one document of about {size / 1e6:,.0f} MB{others}; if it holds many, say how they are separated: "
            "--format lines, --format paragraphs or --format separator=STR (format= in Python)"
        )


def evenly(files: Sequence[InputFile], most: int) -> list[InputFile]:
    """Return at most so many of some files, evenly spread over them, for a sample: each that is opened may be far away.

    >>> evenly([InputFile(Path(name), name) for name in "abcde"], 2)[1].name
    'c'
    """
    count = min(most, len(files))
    return [files[len(files) * number // count] for number in range(count)]


def fingerprint(given: str | os.PathLike[str] | InputFile) -> str:
    """Return a quick hash of a file: sha256 over its name, its size and its first and last MiB, in hexadecimal.

    Of a remote file, over its name, its size and its version: no request is made.
    """
    path = as_input(given)
    size = path.size
    digest = hashlib.sha256(f"{os.path.basename(path)}\0{size}\0".encode("utf-8", "surrogateescape"))
    if path.stored is not None:
        digest.update(path.stored.version.encode())
        return digest.hexdigest()
    with open(path, "rb") as file:
        digest.update(file.read(_MIB))
        file.seek(max(_MIB, size - _MIB))
        digest.update(file.read(_MIB))
    return digest.hexdigest()


def _name_and_pattern(spec: str) -> tuple[str, str]:
    """Part ``NAME=PATTERN``; the name is '' where the whole is a path or matches files."""
    match = _SOURCE.fullmatch(spec)
    if match is None:
        return "", spec
    name, pattern = match.groups()
    if "://" in pattern:
        return name, pattern
    if not any(os.path.lexists(one) or (WILDCARD.search(one) and _glob(one)) for one in _braces(spec)):
        return name, pattern
    if os.path.lexists(spec) and os.path.lexists(pattern):
        raise InputError(
            f"{spec}: a path, and {pattern} is one too; write ./{spec} for the first, or {name}=./{pattern} for the "
            f"second as source {name!r}"
        )
    return "", spec


def _braces(pattern: str) -> list[str]:
    return [pattern] if os.path.lexists(pattern) else expand_braces(pattern)


def _glob(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern, recursive=True), key=natural_key)


class _Finder:
    """Finds files, and leaves out datasets of shards and the directory that is built."""

    def __init__(
        self, output: str | os.PathLike[str] | None, credentials: Credentials, format: str, commits: dict[str, str]
    ) -> None:
        self._commits = commits
        self._any_ending = bool(format)
        self._credentials = credentials
        self._output = None if output is None else os.path.realpath(output)
        self._is_dataset = functools.cache(is_dataset)
        self._is_output = weak_lru_cache(self._lies_in_output, None)
        self._left_out: dict[str, None] = {}  # directories, of the current spec
        self._hidden: list[str] = []  # files and folders, of the current directory or pattern

    def expand(self, spec: str) -> list[InputFile]:
        source, pattern = _name_and_pattern(spec)
        if is_remote(pattern):
            return self._of_url(pattern, source)
        pattern = local_name(pattern)
        self._left_out = {}
        files: list[InputFile] = []
        for one in _braces(pattern):
            if not os.path.lexists(one) and WILDCARD.search(one):
                files += self._matches(one, source)
            elif os.path.isdir(one):
                self._refuse(one)
                files += self._known_only(one, Path(one), list(self._walk(Path(one))), source)
            else:
                path = Path(one)
                _check_readable(path, spec)
                self._refuse(one)
                if not self._any_ending:
                    format_of(path)
                files.append(InputFile(path, path.name, source))
        if self._left_out:
            warn(f"{pattern}: {self._said()}")
        return files

    def _of_url(self, pattern: str, source: str) -> list[InputFile]:
        """Return the files of a url; of those that a glob or folder gives, the ones with a known ending."""
        if pattern.startswith("hf://"):
            from .storage.hub_files import list_dataset

            files = list_dataset(shown(pattern), source, self._credentials, self._commits)
        else:
            files = list_urls(pattern, source, self._credentials)
        if len(files) == 1 and files[0].path == shown(pattern):
            if not self._any_ending:
                format_of(files[0])
            return files
        wildcard = WILDCARD.search(pattern)
        rest = pattern[pattern.rfind("/", 0, wildcard.start()) + 1 :] if wildcard else ""
        # Web servers list nothing, so all are named; the files of the hub are chosen where they are listed.
        named = is_hidden(rest) or is_http(pattern) or pattern.startswith("hf://")
        hidden = [file.name for file in files if is_hidden(file.name) and not named]
        seen = [file for file in files if named or not is_hidden(file.name)]
        return _with_known_endings(shown(pattern), seen, hidden, any_ending=self._any_ending)

    def _refuse(self, path: str) -> None:
        """Raise ``InputError`` for a path that holds no text: a dataset, a shard of one, the output of this build."""
        if self._is_output(path):
            raise InputError(
                f"{path}: lies in the output, {self._output}, which is never read; choose another --output, or move the "
                "text out of it"
            )
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        if self._is_dataset(folder) and (folder == path or path.endswith(".tar")):
            raise InputError(
                f"{path}: belongs to a dataset of shards, which hold tokens; name the text that it was made from, or "
                "stream it with pipeline.ShardDataset"
            )

    def _lies_in_output(self, path: str) -> bool:
        real = os.path.realpath(path)
        return self._output is not None and (real == self._output or real.startswith(self._output + os.sep))

    def _leaves_out(self, directory: str) -> bool:
        if not (self._is_output(directory) or self._is_dataset(directory)):
            return False
        self._left_out[directory] = None
        return True

    def _lies_in_one(self, folder: str, root: str) -> bool:
        """Whether a folder, ``root`` or below it, is or lies in one that is left out."""
        while not self._leaves_out(folder or "."):
            if len(folder) <= len(root):
                return False
            folder = os.path.dirname(folder)
        return True

    def _said(self) -> str:
        built = [path for path in self._left_out if self._is_output(path)]
        others = [path for path in self._left_out if path not in built]
        said = [f"the output, {built[0]}, is never read"] if built else []
        if others:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            said.append(
                f"{len(others)} dataset{'s' * (len(others) > 1)} of shards left out: {', '.join(others[:5])}{more}"
            )
        return "; ".join(said)

    def _matches(self, pattern: str, source: str) -> list[InputFile]:
        root = os.path.dirname(WILDCARD.split(pattern, maxsplit=1)[0])
        found = _glob(pattern)
        if not found:
            whole = f", nor does any match {source}={pattern}" if source else ""
            raise InputError(f"{pattern}: no file matches{whole}{_other_inputs(pattern)}")
        paths: dict[str, None] = {}  # a directory and a file in it may both match
        for name in found:
            if self._lies_in_one(os.path.dirname(name), root):
                continue
            if not os.path.isdir(name):
                paths[name] = None
            elif not self._leaves_out(name) and "**" not in pattern:
                paths.update(dict.fromkeys(map(str, self._walk(Path(name)))))
        return self._known_only(pattern, Path(root), [Path(name) for name in paths], source)

    def _walk(self, root: Path) -> Iterator[Path]:
        """Yield every visible file below ``root`` in natural order; a link to a directory is followed once."""
        seen = {os.path.realpath(root)}

        def fail(error: OSError) -> None:
            raise InputError(f"{error.filename}: cannot be read: {error.strerror}")

        found: list[str] = []
        for directory, names, files in os.walk(root, followlinks=True, onerror=fail):
            kept = []
            for name in names:
                path = os.path.join(directory, name)
                real = os.path.realpath(path)
                if is_hidden(name):
                    self._hidden.append(f"{path}/")
                elif real not in seen and not self._leaves_out(path):
                    seen.add(real)
                    kept.append(name)
            names[:] = sorted(kept, key=natural_key)
            self._hidden += (os.path.join(directory, name) for name in files if is_hidden(name))
            found += (os.path.join(directory, name) for name in files if not is_hidden(name))
        yield from (Path(name) for name in sorted(found, key=natural_key))

    def _known_only(self, given: str, root: Path, paths: list[Path], source: str) -> list[InputFile]:
        once, links = read_once([str(path) for path in paths])
        hidden, self._hidden = self._hidden, []
        found = [InputFile(path, path.relative_to(root).as_posix(), source) for path in map(Path, once)]
        others = [os.path.relpath(path, root) + "/" * path.endswith("/") for path in (*hidden, *links)]
        said = self._said() if self._left_out else ""
        files = _with_known_endings(given, found, others, said, any_ending=self._any_ending)
        for file in files:
            _check_readable(Path(file))
        return files


def _with_known_endings(
    given: str, found: list[InputFile], others: list[str], left_out: str = "", *, any_ending: bool
) -> list[InputFile]:
    """Return the files that can be read, by their names; raise ``InputError`` where none is left.

    Warn of those that cannot, and of ``others``: hidden ones, and links to these.
    """
    found, stale = saved_only(found)
    if stale:
        names = shortened([file.name for file in stale])
        warn(
            f"{given}: {len(stale)} files left out, which an earlier save_to_disk left and state.json does not name: {names}"
        )
    files = [file for file in found if any_ending or find_format(file.name) is not None]
    unread = [file.name for file in found if not any_ending and find_format(file.name) is None] + others
    if not files:
        held = f"only {shortened(unread)}" if unread else "no file"
        held += f" ({left_out})" if left_out else ""
        raise InputError(f"{given}: nothing to read, {held}; readable are {' '.join(ENDINGS)}")
    if unread:
        reasons = "hidden, links to files that are read, or with an ending not known"
        warn(
            f"{given}: {len(unread)} of {len(found) + len(others)} files left out ({reasons}): "
            f"{shortened(sorted(unread, key=natural_key))}"
        )
    return files


def _check_readable(path: Path, spec: str | None = None) -> None:
    """Raise ``InputError`` with the reason unless ``path``, meant by ``spec``, is a file that this process may read."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if str(path) == "-":
            raise InputError("-: a build reads its input more than once, so write it to a file first") from None
        if path.is_symlink():
            raise InputError(f"{path}: a link to {os.readlink(path)}, which is not there") from None
        hint = "; a source's name before = holds letters, digits, - and _ only" if "=" in str(path) else ""
        hint += f", nor is there {spec}" if spec and spec.endswith(f"={path}") else ""
        raise InputError(f"{path}: no such file or directory{_near(path)}{hint}{_other_inputs(str(path))}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}{_other_inputs(str(path))}") from None
    except ValueError as error:  # a NUL, or a surrogate that stands for no byte
        raise InputError(f"{str(path)!r}: no file can have this name: {error}") from None
    if not stat.S_ISREG(mode):
        kind = special_kind(path) or "not a regular file"
        raise InputError(f"{path}: {kind}; a build reads its input more than once, so write it to a file first")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: no permission to read it")


def _other_inputs(name: str) -> str:
    """Return what to write for what is no path: the name of a dataset of the hub, or a text."""
    if _HUB_NAME.fullmatch(name):
        return f"; a dataset of the Hugging Face hub is hf://datasets/{name}"
    if " " in name.strip() and find_format(name) is None:
        return "; texts are given as records, [{'text': ...}], or to pipeline.ShardDataset.from_texts"
    return ""


def _near(path: Path) -> str:
    return did_you_mean(path.name, os.listdir(path.parent), else_known=False) if path.parent.is_dir() else ""
