"""Files (of tests, too) and functions are short, no imports make circles, and docstrings of folders list their files.

The lists of exceptions may only shrink: a test fails where an entry grows, and where it is no longer needed.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.report.console import Progress
from tests.corpus import documents

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path for room in ("pipeline", "filters", "scripts") for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").glob("*.py"))
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py")

QUIET = Progress(quiet=True)

LONGEST_FILE = 400
LONGEST_MEDIAN = 150
LONGEST_FUNCTION = 60
MOST_FILES = 12

# What is longer than it may be, with its lines of today.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS = {"pipeline/stream/indexed/windows/gather.py:gather": 67}
CIRCLES: set[tuple[str, ...]] = set()
# Folders of like things may hold any number of files.
LISTS = {"scripts"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring, which may be as long as its reader needs."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def functions() -> Iterator[tuple[str, int]]:
    """Yield ``file:name`` and the lines of each function, but those that only describe a command's arguments."""
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.endswith("make_parser"):
                yield f"{relative(path)}:{node.name}", code_lines(node)


def assert_only_listed(found: dict[str, int], listed: dict[str, int]) -> None:
    """Assert that what is too long is listed, is no longer than the list says, and that the list holds nothing else."""
    assert found.keys() == listed.keys()
    grown = {name: (listed[name], lines) for name, lines in found.items() if lines > listed[name]}
    assert not grown, f"longer than listed: {grown}"


def test_no_file_is_long_but_those_listed() -> None:
    lines = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in [*FILES, *TESTS]}
    assert_only_listed({name: count for name, count in lines.items() if count > LONGEST_FILE}, LONG_FILES)


def test_most_files_are_short() -> None:
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in FILES if path.name != "__init__.py"]
    assert statistics.median(lines) < LONGEST_MEDIAN


def test_no_function_is_long_but_those_listed() -> None:
    assert_only_listed({name: lines for name, lines in functions() if lines > LONGEST_FUNCTION}, LONG_FUNCTIONS)


def test_no_folder_is_full_but_those_listed() -> None:
    folders = {path.parent for path in FILES} | {ROOT / "filters/presets"}
    counts = {relative(folder): sum(path.is_file() for path in folder.iterdir()) for folder in folders}
    full = {name for name, count in counts.items() if count > MOST_FILES}
    assert full == LISTS


# Imports


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str]) -> set[str]:
    """Return the modules that a file imports, also inside functions, but for types alone.

    Of ``from a import b``, that is a.b where it is a module.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    tree = parse(path)
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {id(inner) for node in tests for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            inner = {f"{module}.{alias.name}" for alias in node.names}
            found |= inner & modules
            if inner - modules:
                found.add(module)
    return found & modules


def circles(imports: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Return the groups of modules each of which imports itself through the others."""

    def reached(module: str) -> set[str]:
        found: set[str] = set()
        waiting = set(imports[module])
        while waiting:
            found |= waiting
            waiting = {other for each in waiting for other in imports[each]} - found
        return found

    reach = {module: reached(module) for module in imports}
    return {
        tuple(sorted(other for other in reach[module] if module in reach[other]))
        for module in imports
        if module in reach[module]
    }


def test_circles_of_imports_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}, "e": {"e"}}) == {("b", "c", "d"), ("e",)}


def test_no_module_imports_itself_through_others_but_those_listed() -> None:
    modules = {module_name(path): path for path in FILES}
    imports = {name: imported(path, set(modules)) for name, path in modules.items()}
    assert sum(map(len, imports.values())) > len(modules)
    assert circles(imports) == CIRCLES


# Maps


@pytest.mark.parametrize("folder", PACKAGES, ids=relative)
def test_the_docstring_of_a_room_names_each_of_its_files_and_folders_and_nothing_else(folder: Path) -> None:
    written = ast.get_docstring(parse(folder / "__init__.py")) or ""
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
    # A line of the map begins with names, ahead of two spaces.
    entries = [re.split(r" {2,}", line.strip(), maxsplit=1)[0] for line in written.splitlines() if "  " in line.strip()]
    names = {name for entry in entries for name in re.split(r",? ", entry) if re.fullmatch(r"[a-z0-9_]+(\.py|/)", name)}
    assert names == files | {f"{name}/" for name in folders}


def test_the_architecture_of_the_readme_names_the_folders_that_there_are() -> None:
    block = (ROOT / "README.md").read_text(encoding="utf-8").split("## Architecture\n")[1]
    # Folders of folders stand in lines of names alone.
    stated = {name for line in block.splitlines() for name in re.findall(r"(?:^|(?<= ))([a-z]+/)(?= |$)", line)}
    rooms = {f"{path.name}/" for path in PACKAGES}
    assert stated == rooms | {"presets/", "scripts/", "tests/"}


# The way of a batch and of a document


class FileChanges:
    """Counts how often the code that runs changes from one file of the package to another."""

    def __init__(self) -> None:
        self.count = 0
        self._last = ""
        self._roots = str(ROOT / "pipeline"), str(ROOT / "filters")

    def note(self, frame: Any, event: str, _: Any) -> None:
        caller = frame if event == "call" else frame.f_back if event == "return" else None
        file = "" if caller is None else caller.f_code.co_filename
        if file.startswith(self._roots) and file != self._last:
            self.count, self._last = self.count + 1, file

    def __enter__(self) -> FileChanges:
        sys.setprofile(self.note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)


def test_a_batch_changes_files_at_most_19_times() -> None:
    stream = pipeline.ShardDataset.from_tokens(range(60_000), lengths=[600] * 100).shuffle(seed=0).pack(16).batch(4)
    batches = iter(stream)
    list(islice(batches, 5))
    with FileChanges() as changes:
        list(islice(batches, 20))
    assert 0 < changes.count <= 19 * 20 + 26  # 26 more where the places of later steps are looked up


def test_a_document_changes_files_at_most_9_times_from_its_file_to_its_shard(tmp_path: Path) -> None:
    def changes(count: int) -> int:
        """Return those of a build of ``count`` documents, but for its plan."""
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents(count)))
        counter = FileChanges()

        def begin(stage: str) -> None:
            if stage == "plan":
                sys.setprofile(counter.note)

        try:
            pipeline.build(
                tmp_path / "in.jsonl", tmp_path / str(count), tokenizer="bytes", progress=QUIET, after_stage=begin
            )
        finally:
            sys.setprofile(None)
        return counter.count

    changes(10)  # loads libraries and compiled loops
    few, many = changes(100), changes(300)
    assert 0 < many - few <= 9 * 200


# Questions about types


def classes_of(files: Iterable[Path]) -> set[str]:
    return {node.name for path in files for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)}


def test_the_stream_asks_at_most_5_times_of_which_class_a_config_data_or_reader_is() -> None:
    stream = ROOT / "pipeline/stream"
    rooms = [
        "config.py",
        "layout.py",
        "reader.py",
        "data/*.py",
        "indexed/*.py",
        "indexed/windows/*.py",
        "sequential/*.py",
        "sequential/text/*.py",
    ]
    classes = classes_of(path for room in rooms for path in stream.glob(room))
    classes |= classes_of(stream.glob("batch/[cl]*.py"))  # collators
    assert {
        "StreamConfig",
        "PackLayout",
        "TextData",
        "MixedData",
        "HoldoutData",
        "PackedSequences",
        "SequentialReader",
    } <= classes
    asked = [
        f"{relative(path)}:{node.lineno}"
        for path in sorted(stream.rglob("*.py"))
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("isinstance", "issubclass", "type")
        and classes & set(re.findall(r"\w+", ast.unparse(node.args[-1])))
    ]
    assert len(asked) <= 5, asked


def test_no_test_reads_a_clock_of_its_own_to_judge_speed() -> None:
    clocks = re.compile(r"\b(process_time|perf_counter|thread_time)\(")
    held = {path.name for path in TESTS if clocks.search(path.read_text())}
    assert held == {"cost.py"}, (
        "timings depend on the machine; growth is told by tests/cost.py, speed by scripts/bench_*.py"
    )


def test_tests_pass_parameters_and_patch_nothing_of_the_package() -> None:
    outside = {"tempfile", "ray", "sys.modules"}  # what belongs to Python and to libraries
    patch = re.compile(r"(?:\b(?:setattr|setitem|delattr|delitem|mock\.patch)\()([^,)]*)")
    patched = {
        f"{path.name}: {target}"
        for path in TESTS
        for target in patch.findall(path.read_text(encoding="utf-8"))
        if target not in outside
    }
    assert not patched, patched
