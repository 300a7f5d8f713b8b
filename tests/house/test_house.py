"""No imports make circles, docstrings of folders list their files, and tests neither time nor patch."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for room in ("pipeline", "filters", "scripts") for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# Imports


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str], *, types: bool = False) -> set[str]:
    """Return the modules that a file imports, also inside functions; those for types alone, where ``types`` says so.

    Of ``from a import b``, that is a.b where it is a module.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    tree = parse(path)
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {id(inner) for node in tests for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types and not types:
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


def test_no_module_imports_itself_through_others() -> None:
    modules = {module_name(path): path for path in FILES}
    imports = {name: imported(path, set(modules)) for name, path in modules.items()}
    assert sum(map(len, imports.values())) > len(modules)
    assert circles(imports) == set()


def room_of(path: Path) -> str:
    """Return the room of a file: its folder, or the file itself where the folder holds other rooms."""
    return module_name(path) if any(path.parent.glob("*/__init__.py")) else module_name(path.parent / "__init__.py")


def test_rooms_import_each_other_in_one_direction_even_for_types() -> None:
    modules = {module_name(path): path for path in FILES}
    imports: dict[str, set[str]] = {}
    for name, path in modules.items():
        # The face of a folder of rooms names what lies above it; nothing but users and its commands go through it.
        own = f"{name}.__init__" if path.name == "__init__.py" and room_of(path) == name else room_of(path)
        rooms = {room_of(modules[other]) for other in imported(path, set(modules), types=True)}
        imports.setdefault(own, set()).update(rooms - {own})
    for room in {other for rooms in imports.values() for other in rooms}:
        imports.setdefault(room, set())
    assert circles(imports) == set()


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


def test_no_test_reads_a_clock_of_its_own_to_judge_speed() -> None:
    clocks = re.compile(r"\b(process_time|perf_counter|thread_time)\(")
    held = {path.name for path in TESTS if clocks.search(path.read_text())}
    assert held == {"cost.py"}, (
        "timings depend on the machine; growth is told by tests/cost.py, speed by scripts/bench_*.py"
    )


def test_tests_pass_parameters_and_patch_nothing_of_the_package() -> None:
    outside = {"tempfile", "ray", "sys.modules", "fcntl"}  # what belongs to Python and to libraries
    patch = re.compile(r"(?:\b(?:setattr|setitem|delattr|delitem|mock\.patch)\()([^,)]*)")
    patched = {
        f"{path.name}: {target}"
        for path in TESTS
        for target in patch.findall(path.read_text(encoding="utf-8"))
        if target not in outside
    }
    assert not patched, patched
