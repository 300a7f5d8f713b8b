"""Rooms keep their walls, imports make no circles, docstrings of folders list their files, tests neither time nor patch."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import FILES, ROOT, nodes, relative

TESTS = sorted((ROOT / "tests").rglob("*.py"))
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py")


# Imports


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@cache
def imports(path: Path, *, types: bool) -> frozenset[str]:
    """Return all that a file imports, also inside functions; for types alone, where ``types`` says so.

    Of ``from a import b``, these are a and a.b.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    tests = [node for node in nodes(path) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {id(inner) for node in tests for inner in ast.walk(node)}
    names: set[str] = set()
    for node in nodes(path):
        if id(node) in for_types and not types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            inner = {f"{module}.{alias.name}" for alias in node.names}
            names |= inner if inner <= set(MODULES) else {module, *inner}
    return frozenset(names)


def circles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Return the groups of modules each of which imports itself through the others."""

    def reach(module: str) -> set[str]:
        reached: set[str] = set()
        waiting = set(graph[module])
        while waiting:
            reached |= waiting
            waiting = {other for name in waiting for other in graph[name]} - reached
        return reached

    reached = {module: reach(module) for module in graph}
    return {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }


def test_circles_of_imports_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}, "e": {"e"}}) == {("b", "c", "d"), ("e",)}


def test_no_module_imports_itself_through_others_even_for_types() -> None:
    graph = {name: set(imports(path, types=True) & MODULES.keys()) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > len(MODULES)
    assert circles(graph) == set()


def room_of(path: Path) -> str:
    """Return the room of a file: its folder, or the file itself where the folder holds other rooms."""
    return module_name(path) if any(path.parent.glob("*/__init__.py")) else module_name(path.parent / "__init__.py")


def test_rooms_import_each_other_in_one_direction_even_for_types() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        # The face of a folder of rooms names what lies above it; nothing but users and its commands go through it.
        own = f"{name}.__init__" if path.name == "__init__.py" and room_of(path) == name else room_of(path)
        rooms = {room_of(MODULES[other]) for other in imports(path, types=True) & MODULES.keys()}
        graph.setdefault(own, set()).update(rooms - {own})
    for room in {other for rooms in graph.values() for other in rooms}:
        graph.setdefault(room, set())
    assert circles(graph) == set()


NO_BUILD = "pipeline.builder pipeline.exchange pipeline.finished pipeline.cli scripts"
WALLS = {
    "pipeline/objects": "pipeline.shards pipeline.stream pipeline.text filters torch numpy " + NO_BUILD,
    "pipeline/shards": "pipeline.stream pipeline.text filters torch numba pipeline.compiling " + NO_BUILD,
    "pipeline/text": "pipeline.stream torch " + NO_BUILD,
    "pipeline/builder": "pipeline.exchange pipeline.finished pipeline.stream pipeline.cli scripts torch",
    "pipeline/exchange": "pipeline.finished pipeline.stream pipeline.cli scripts torch "
    + " ".join(
        # Of the builder it takes the settings and the counts of a manifest.
        f"pipeline.builder.{module}"
        for module in "build stages work partitions engines transforms dedup report output_directory".split()
    ),
    "pipeline/finished": "pipeline.stream pipeline.cli scripts torch",
    "pipeline/stream": "numba pipeline.compiling " + NO_BUILD,
    "pipeline/stream/datasets/sources": " ".join(
        f"pipeline.stream.{room}" for room in "assemble batch indexed iteration sequential windows".split()
    ),
    "pipeline/cli": "pipeline.stream scripts torch",
    "filters": "pipeline.stream torch " + NO_BUILD,
}


@pytest.mark.parametrize("room", WALLS)
def test_no_room_imports_what_lies_behind_its_walls(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        names = imports(path, types=True)
        crossed = {name for name in names for wall in WALLS[room].split() if f"{name}.".startswith(f"{wall}.")}
        assert not crossed, relative(path)


# Maps


@pytest.mark.parametrize("folder", PACKAGES, ids=relative)
def test_the_docstring_of_a_room_names_its_files_and_folders(folder: Path) -> None:
    written = ast.get_docstring(nodes(folder / "__init__.py")[0]) or ""  # type: ignore[arg-type]
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {path.name for path in folder.iterdir() if path.name != "__pycache__" and any(path.glob("*.*"))}
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


def names_assigned_twice(module: Any) -> set[str]:
    """Return the constants that a module gives a value by ``=`` more than once; mypy finds only values of different types."""
    stores = [
        name.id
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id.isupper()
    ]
    return {name for name in stores if stores.count(name) > 1}


def test_a_module_gives_no_constant_a_second_value() -> None:
    twice = ast.parse("_MOST = 4\ndef f(): return _MOST\n_MOST: int = 32\nA, B = 1, 2\nA += 1")
    assert names_assigned_twice(twice) == {"_MOST"}
    found = {relative(path): names_assigned_twice(nodes(path)[0]) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_no_test_reads_a_clock_of_its_own_to_judge_speed() -> None:
    clocks = re.compile(r"\b(process_time|perf_counter|thread_time)\(")
    timed = [path.name for path in TESTS if clocks.search(path.read_text())]
    assert not timed, "timings depend on the machine; scripts/bench_*.py tell speed"


def test_tests_pass_parameters_and_patch_nothing_of_the_package() -> None:
    outside = {
        "tempfile",
        "ray",
        "sys.modules",
        "fcntl",
        "time",
        '"os.fsync"',
    }  # what belongs to Python and to libraries
    patch = re.compile(r"(?:\b(?:setattr|setitem|delattr|delitem|mock\.patch)\()([^,)]*)")
    patched = {
        f"{path.name}: {target}"
        for path in TESTS
        for target in patch.findall(path.read_text(encoding="utf-8"))
        if target not in outside
    }
    assert not patched, patched


def test_tests_match_the_values_and_the_cure_of_a_message_but_no_whole_sentence() -> None:
    sentences = [
        f"{relative(path)}:{node.value.lineno}: {node.value.value}"
        for path in TESTS
        for node in nodes(path)
        if isinstance(node, ast.keyword) and node.arg == "match"
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if any(len(part.split()) > 8 for part in re.split(r"\.[*+]", node.value.value))
    ]
    assert not sentences, "write the values and the cure, with .* between, so that a message can be reworded"
