"""Paths, patterns and folders of this machine -> input files, with errors and warnings for what is not read."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import InputError, MissingInputError, did_you_mean
from ...notices import warn
from ...objects.locations import folder_of
from ...objects.urls import expand_braces
from ...paths import glob_root, has_wildcard, is_hidden, matching, natural_key, read_once, shortened, special_kind
from ...shards.manifest import is_dataset
from ..formats import find_format, format_of
from .folders import in_output_error, readable_files
from .input_file import InputFile

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w-][\w.-]*(:[\w.-]+)*")


def paths_meant(pattern: str) -> list[str]:
    """Return the patterns that braces stand for, or the pattern itself if it is an existing path."""
    return [pattern] if os.path.lexists(pattern) else expand_braces(pattern, InputError)


class LocalFiles:
    """Finds files of this machine, without datasets of shards and ``outputs``, the directories that are built.

    ``any_ending`` says that files with unknown endings are read, too.
    """

    def __init__(self, outputs: Sequence[str], *, any_ending: bool) -> None:
        self._any_ending = any_ending
        self._is_dataset = functools.cache(is_dataset)
        self._output_of = functools.cache(functools.partial(folder_of, folders=outputs))
        self._left_out: dict[str, None] = {}  # directories that the current pattern leaves out
        self._hidden: list[str] = []  # hidden files and folders in the current directory or glob

    def find(self, pattern: str, source: str, spec: str) -> list[InputFile]:
        """Return the files of a path or pattern. Errors name ``spec``, which is the user's whole argument."""
        self._left_out = {}
        files: list[InputFile] = []
        for one in paths_meant(pattern):
            if has_wildcard(one):
                files += self._matches(one, source)
            elif os.path.isdir(one):
                self._refuse(one)
                files += self._readable(one, Path(one), list(self._walk(Path(one))), source)
            else:
                path = Path(one)
                _check_readable(path, spec)
                self._refuse(one)
                if not self._any_ending:
                    format_of(path)
                files.append(InputFile(path, path.name, source))
        if self._left_out:
            warn(f"{pattern}: {self._left_out_text()}")
        return files

    def _refuse(self, path: str) -> None:
        """Raise ``InputError`` if a path is a dataset, a shard, or in the output of this build."""
        if output := self._output_of(path):
            raise in_output_error(path, output)
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        if self._is_dataset(folder) and (folder == path or path.endswith(".tar")):
            raise InputError(
                f"{path}: belongs to a dataset of shards, which hold tokens; name the text that it was made from, or "
                "stream it with pipeline.ShardDataset"
            )

    def _leaves_out(self, directory: str) -> bool:
        if not (self._output_of(directory) or self._is_dataset(directory)):
            return False
        self._left_out[directory] = None
        return True

    def _is_left_out(self, folder: str, root: str) -> bool:
        """Whether a folder, or one of its parents up to ``root``, is left out."""
        while not self._leaves_out(folder or "."):
            if len(folder) <= len(root):
                return False
            folder = os.path.dirname(folder)
        return True

    def _left_out_text(self) -> str:
        built = [path for path in self._left_out if self._output_of(path)]
        others = [path for path in self._left_out if path not in built]
        parts = [f"the output, {built[0]}, is never read"] if built else []
        if others:
            parts.append(f"{len(others)} dataset{'s' * (len(others) > 1)} of shards left out: {shortened(others, 5)}")
        return "; ".join(parts)

    def _matches(self, pattern: str, source: str) -> list[InputFile]:
        root = os.path.dirname(glob_root(pattern))
        names = matching(pattern)
        if not names:
            whole = f", nor does any match {source}={pattern}" if source else ""
            raise MissingInputError(f"{pattern}: no file matches{whole}{_other_inputs(pattern)}")
        paths: dict[str, None] = {}  # a directory and a file in it may both match
        for name in names:
            if self._is_left_out(os.path.dirname(name), root):
                continue
            if not os.path.isdir(name):
                paths[name] = None
            elif not self._leaves_out(name) and "**" not in pattern:
                paths.update(dict.fromkeys(map(str, self._walk(Path(name)))))
        return self._readable(pattern, Path(root), [Path(name) for name in paths], source)

    def _walk(self, root: Path) -> Iterator[Path]:
        """Yield every file below ``root`` that is not hidden, in natural order. A linked directory is read once."""
        seen = {os.path.realpath(root)}

        def fail(error: OSError) -> None:
            raise InputError(f"{error.filename}: cannot be read: {error.strerror}")

        paths: list[str] = []
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
            paths += (os.path.join(directory, name) for name in files if not is_hidden(name))
        yield from (Path(name) for name in sorted(paths, key=natural_key))

    def _readable(self, spec: str, root: Path, paths: list[Path], source: str) -> list[InputFile]:
        once, links = read_once([str(path) for path in paths])
        hidden, self._hidden = self._hidden, []
        candidates = [InputFile(path, path.relative_to(root).as_posix(), source) for path in map(Path, once)]
        others = [os.path.relpath(path, root) + "/" * path.endswith("/") for path in (*hidden, *links)]
        left_out = self._left_out_text() if self._left_out else ""
        files = readable_files(spec, candidates, others, left_out, any_ending=self._any_ending)
        for file in files:
            _check_readable(Path(file))
        return files


def _check_readable(path: Path, spec: str | None = None) -> None:
    """Raise ``InputError`` with the reason unless ``path`` is a file that this process may read."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if str(path) == "-":
            raise InputError("-: a build reads its input more than once, so write it to a file first") from None
        if path.is_symlink():
            raise MissingInputError(f"{path}: a link to {os.readlink(path)}, which is not there") from None
        hint = "; a source's name before = may have letters, digits, - and _ only" if "=" in str(path) else ""
        hint += f", nor is there {spec}" if spec and spec.endswith(f"={path}") else ""
        raise MissingInputError(
            f"{path}: no such file or directory{_near(path)}{hint}{_other_inputs(str(path))}"
        ) from None
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
    """Return the cure if a path looks like a dataset of the hub, or like a text."""
    if _HUB_NAME.fullmatch(name):
        return f"; a dataset of the Hugging Face hub is hf://datasets/{name}"
    if " " in name.strip() and find_format(name) is None:
        return "; texts are given as records, [{'text': ...}], or to pipeline.ShardDataset.from_texts"
    return ""


def _near(path: Path) -> str:
    return did_you_mean(path.name, os.listdir(path.parent), else_known=False) if path.parent.is_dir() else ""
