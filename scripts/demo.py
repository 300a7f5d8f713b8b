"""All steps on text of this Python installation: build, report, verify, inspect, train, kill, resume.

    python scripts/demo.py [DIRECTORY]

The text is docstrings and comments of the standard library, and licences, READMEs and metadata of the installed packages,
which contain duplicates. Nothing is downloaded. DIRECTORY (default: demo) is replaced each time.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tokenize
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import orjson
import zstandard

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
STEPS, SAVE_EVERY, KILLED_AT = 60, 20, 30
TOLERANCE = 1e-3  # one rank and two ranks round sums differently
OWN_FILES = {"raw", "shards", "run"}
LEAST_WORDS = 20  # of a document of Python's library; shorter ones are single sentences
TEXT_FILES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS", "README", "METADATA", "CHANGELOG")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path("demo"), help="where to work (default: demo)")
    folder: Path = parser.parse_args(arguments).directory
    others = sorted({path.name for path in folder.glob("*")} - OWN_FILES)
    if others or folder.is_file():
        parser.error(f"{folder} holds {', '.join(others[:5]) or 'a file'}: give a new directory, or a demo's own")
    shutil.rmtree(folder, ignore_errors=True)
    began, shards = time.perf_counter(), folder / "shards"

    headline("1  text", "Docstrings and comments of Python's library, and the papers of installed packages.")
    documents, size = write_corpus(folder / "raw")
    print(f"{documents:,} documents, {size / 1e6:.1f} MB of text, as {folder}/raw/*.jsonl.zst")

    headline("2  build", "Filters, deduplicates, trains a tokenizer, and writes shards with a manifest and a report.")
    build = ["--tokenizer", "train:8000", "--rules", "gopher", "--set", "words.min=20", "--language", "en=0.3"]
    build += ["--val-fraction", "0.1"]
    run("build_shards.py", folder / "raw", "--output", shards, "--workers", "2", *build)

    headline("3  verify", "Recomputes every hash, checksum, count and index of the dataset.")
    run("verify_shards.py", shards)

    headline("4  inspect", "Shows the dataset at a glance, then the first two rows of training as text.")
    run("inspect_shards.py", shards)
    run("inspect_shards.py", shards, "--batch", 0, "--rows", 2, "--seq-len", 128)
    print("(a document ends at <|endoftext|>, and the next one follows in the same row)")

    headline("5  train", f"A small GPT, {STEPS} steps on one process, never stopped.")
    training = [shards, "--steps", STEPS, "--eval-every", SAVE_EVERY, "--global-batch", 8, "--seq-len", 128]
    training += ["--layers", 2, "--width", 64, "--lr", 1e-3, "--device", "cpu", "--save-every", SAVE_EVERY]
    whole = losses(train(1, *training))
    print(f"loss {whole[1]:.3f} at step 1, {whole[STEPS]:.3f} at step {STEPS}")

    headline("6  kill", f"The same training under torchrun on 2 ranks, ended by SIGKILL after step {KILLED_AT}.")
    killed = losses(train(2, *training, "--checkpoint", folder / "run", kill_at=KILLED_AT))
    saved = sorted(path.name for path in (folder / "run").iterdir())
    print(f"killed at step {max(killed)}; {folder}/run holds {', '.join(saved)}")

    headline("7  resume", "The same command again, on 1 rank instead of 2.")
    resumed = losses(train(1, *training, "--checkpoint", folder / "run"))
    print(f"went on at step {min(resumed)}; loss {resumed[STEPS]:.3f} at step {STEPS}")

    headline("what was shown")
    worst = max(abs(loss - whole[step]) for part in (killed, resumed) for step, loss in part.items())
    if worst > TOLERANCE or set(killed) | set(resumed) != set(whole):
        print(f"the losses of the killed run differ by up to {worst:.6f}")
        return 1
    print(f"the losses of both runs are equal, to {worst:.6f}, on 2 ranks and after the kill on 1")
    print(f"{folder}/shards/report.html   what was dropped, and why")
    print(f"{time.perf_counter() - began:.0f} s in all. Next, on text of your own:")
    if sys.prefix != sys.base_prefix and "VIRTUAL_ENV" not in os.environ:
        print(f"  . {os.path.relpath(sys.prefix)}/bin/activate")
    print("  python scripts/build_shards.py TEXT... --output shards --tokenizer train:32000")
    print("  python scripts/train_gpt.py shards")
    return 0


def headline(title: str, sentence: str = "") -> None:
    print(f"\n{f'── {title} ':─<100}", *([sentence] if sentence else []), sep="\n", flush=True)


def run(script: str, *arguments: object) -> None:
    """Run a script of this folder. If it fails, the demo ends with its exit status."""
    words = [script, *map(str, arguments)]
    print(f"$ python scripts/{' '.join(words)}", flush=True)
    status = subprocess.run([sys.executable, str(SCRIPTS / script), *words[1:]]).returncode
    if status:
        raise SystemExit(status)


def train(ranks: int, *arguments: object, kill_at: int | None = None) -> Iterator[str]:
    """Run the training script, with torchrun if there are several ranks; yield its lines until it ends or is killed."""
    words = ["train_gpt.py", *map(str, arguments)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    shown = f"torchrun --nproc-per-node {ranks}" if ranks > 1 else "python"
    print(f"$ {shown} scripts/{' '.join(words)}", flush=True)
    command = [sys.executable, *launcher, str(SCRIPTS / words[0]), *words[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:  # to the end: a run may take more steps, and save them, before it is killed
            yield line
            if kill_at is not None and line.startswith(f'{{"step": {kill_at},'):
                subprocess.run(["pkill", "-KILL", "-P", str(process.pid)])  # the ranks
                process.kill()
    if process.returncode and kill_at is None:
        raise SystemExit(process.returncode)


def losses(lines: Iterator[str]) -> dict[int, float]:
    """Return the loss of each step, and print the progress now and then."""
    by_step: dict[int, float] = {}
    for line in lines:
        if line.startswith("{"):
            record = json.loads(line)
            by_step[record["step"]] = record["loss"]
            if "val_loss" in record:
                print(f"  step {record['step']:3}  loss {record['loss']:.3f}  validation {record['val_loss']:.3f}")
    return by_step


def collect_documents() -> Iterator[dict[str, str]]:
    """Yield the documents, in an order that does not depend on the file system."""
    library = Path(sysconfig.get_path("stdlib"))
    elsewhere = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    sources = [path for path in library.rglob("*.py") if not elsewhere & set(path.relative_to(library).parts)]
    for path in sorted(sources):
        name = path.relative_to(library).as_posix()
        for number, text in enumerate(prose_of(path)):
            yield {"id": f"stdlib/{name}#{number}", "text": text}
    for distribution in sorted(metadata.distributions(), key=lambda d: d.metadata["Name"].lower()):
        for file in sorted(map(str, distribution.files or [])):
            stem = Path(file).stem.upper()
            if any(stem.startswith(name) for name in TEXT_FILES) and not file.endswith((".py", ".pyc", ".so")):
                text = read_text(Path(str(distribution.locate_file(file))))
                if text:
                    yield {"id": f"packages/{file}", "text": text}


def prose_of(path: Path) -> list[str]:
    """Return documents of a module: the docstrings of the module, of each class with its methods, and the comments."""
    source = read_text(path)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # the library's tests contain broken modules on purpose
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)]
    texts = [
        "\n\n".join(filter(None, [ast.get_docstring(owner), *map(function_docstring, owner.body)])) for owner in owners
    ]
    try:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = [token.string.lstrip("#! ") for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):
        comments = []
    return [text for text in [*texts, "\n".join(comments)] if len(text.split()) >= LEAST_WORDS]


def function_docstring(node: ast.stmt) -> str | None:
    return ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def write_corpus(directory: Path, files: int = 4) -> tuple[int, int]:
    """Distribute the documents over ``files`` compressed JSON Lines files; return their number and bytes of text."""
    directory.mkdir(parents=True)
    lines: list[list[bytes]] = [[] for _ in range(files)]
    size = 0
    for number, document in enumerate(collect_documents()):
        lines[number % files].append(orjson.dumps(document) + b"\n")
        size += len(document["text"].encode())
    for number, part in enumerate(lines):
        (directory / f"part-{number}.jsonl.zst").write_bytes(zstandard.compress(b"".join(part), 3))
    return sum(map(len, lines)), size


if __name__ == "__main__":
    sys.exit(main())
