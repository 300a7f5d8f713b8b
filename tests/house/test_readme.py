"""Every block of the README and of the pages of docs/ runs, in order, in one directory; their links lead somewhere."""

from __future__ import annotations

import glob
import os
import random
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import zstandard

from tests.conftest import ROOMS
from tests.helpers import interpreters
from tests.helpers.documentation import PAGES, README, ROOT, RUN, blocks_of
from tests.stream.recipes import RECIPES

BLOCKS = blocks_of("README.md")
WORDS = (
    "the to of and that have with be time people way water day part sound work place year live back give most very after"
    " thing name good sentence man think say great where help through much before line right too mean old any same tell"
).split()


def write_corpus(directory: Path, documents: int) -> None:
    """English enough for the language identifier and Gopher's rules, and no two documents alike."""
    generator = random.Random(0)
    lines = []
    for number in range(documents):
        sentences = [
            " ".join(generator.choices(WORDS, k=generator.randint(6, 14))).capitalize() + "."
            for _ in range(generator.randint(12, 60))
        ]
        lines.append(orjson.dumps({"id": str(number), "text": " ".join(sentences)}))
    directory.mkdir()
    (directory / "part-0.jsonl.zst").write_bytes(zstandard.compress(b"\n".join(lines)))


def test_the_commands_of_the_first_block_are_targets_that_set_themselves_up() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [line.split("#")[0].split() for line in BLOCKS[0][1].splitlines() if line]
    assert [command[0] for command in commands] == ["make"] * 3
    for _, target in commands:
        assert re.search(rf"^{target}: \.venv/(package|installed)$", makefile, re.MULTILINE)


def run_commands(block: str, cwd: Path) -> None:
    """Run the commands of a block, those of Python in interpreters that have the libraries loaded."""
    for command in re.split(r"\n(?=(?:[^']*'[^']*')*[^']*\Z)", block.strip()):  # at line ends outside of quotes
        program, *words = shlex.split(command)
        arguments = [
            path
            for word in words
            for path in (sorted(glob.glob(word, root_dir=cwd)) if word.startswith("raw/") else [word])
        ]
        if program == "shardwright":
            done = interpreters.run("-m", "pipeline", *arguments, cwd=cwd)
        elif program == "python":
            done = interpreters.run(*arguments, cwd=cwd)
        else:
            done = subprocess.run(["bash", "-ec", command], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(300)
def test_every_other_block_runs_as_it_stands(tmp_path: Path) -> None:
    write_corpus(tmp_path / "raw", 250)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    python = "import os\n"
    for kind, block in [block for page in RUN for block in blocks_of(page)][1:]:
        # tests/stream/test_jax.py, test_stack_boundaries.py, test_stack_recipes.py
        if "import jax" in block or "SFTTrainer" in block or block in RECIPES.values():
            continue
        if kind == "sh":
            run_commands(block.replace("scripts/", f"{ROOT}/scripts/"), tmp_path)
        else:
            python += block
    (tmp_path / "blocks.py").write_text(python)  # filters are known by their source
    done = subprocess.run([sys.executable, "blocks.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{python}\n{done.stdout}\n{done.stderr}"
    assert any(int(line) > 100_000 for line in done.stdout.splitlines() if line.isdecimal())


def test_every_link_leads_to_a_file_and_a_section() -> None:
    # Those of the others: tests/house/test_chat.py, test_recipes.py, ...; of clusters.md: tests/stream/test_stack_signals.py.
    others = {f"docs/{name}.md" for name in ("start", "speed", "chat", "recipes", "clusters")}
    assert {name for name in PAGES if blocks_of(name)} == {*RUN, *others}
    for name, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]*(?:#[^)]*)?)\)", text):
            file, _, section = target.partition("#")
            path = (ROOT / name).parent / file if file else ROOT / name
            assert path.is_file(), f"{name}: {target}"
            heads = re.findall(r"(?m)^#+ (.*)$", path.read_text(encoding="utf-8")) if section else []
            known = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert not section or section in known, f"{name}: {target}"
    assert {name for name in PAGES if name.startswith("docs/")} <= set(re.findall(r"\((docs/\w+\.md)\)", README))


def test_the_site_has_every_page() -> None:
    listed = runpy.run_path(str(ROOT / "docs/conf.py"))["include_patterns"]
    assert sorted(listed) == sorted(PAGES)


def test_files_that_pages_name_are_there() -> None:
    files = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[a-z]*/**/*.*")]
    for name, text in PAGES.items():
        rooms = (
            "" if name == "CONTRIBUTING.md" else "(?:pipeline|filters|tests)/"
        )  # contributors find `plan.py` alone, too
        for named in re.findall(rf"`({rooms}(?:\w+/)*\w+(?:\.py|/))`", text):
            assert any(f"/{named}" in file for file in files), f"{name}: {named}"


def test_contributing_has_the_rooms_of_the_tests_in_the_order_in_which_they_run() -> None:
    rooms = re.findall(r"(?m)^\| `(\w+)/` \|.*\d \|$", PAGES["CONTRIBUTING.md"])
    assert rooms == ROOMS
    assert set(rooms) == {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}


def test_the_first_screen_has_two_sentences_and_the_four_steps() -> None:
    prose = README.split("```")[0].split("\n", 1)[1]
    assert len(re.findall(r"[.;](?:\s|$)", prose.replace("`", ""))) <= 3
    kinds = [kind for kind, _ in BLOCKS[:4]]
    assert kinds == ["sh", "sh", "python", "python"]


def test_every_script_explains_itself() -> None:
    code = """
import contextlib, runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    sys.path[0] = "scripts"
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
"""
    scripts = sorted(f"scripts/{path.name}" for path in (ROOT / "scripts").glob("*.py"))
    done = interpreters.run("-c", code, *scripts)
    assert done.returncode == 0, done.stderr
    usages = re.findall(r"^usage: (?:python )?(\S+)", done.stdout, re.MULTILINE)
    assert len(usages) == len(scripts), usages


def test_the_demo_refuses_a_directory_with_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = interpreters.run("scripts/demo.py", tmp_path, timeout=60)
    assert done.returncode == 2
    assert "holds thesis.tex: give a new directory" in done.stderr
    assert (tmp_path / "thesis.tex").exists()
