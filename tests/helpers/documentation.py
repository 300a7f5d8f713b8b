"""The pages that users read, and the blocks in them that run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers import interpreters
from tests.helpers.interpreters import ROOT

# In the order in which their blocks run, in one folder.
RUN = (
    "README.md",
    *(f"docs/{name}.md" for name in "build train epochs text lengths trace mix frameworks format".split()),
    *(f"docs/{name}.md" for name in "masks migrate answer experiments".split()),
)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}
README = PAGES["README.md"]


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of a page that runs."""
    return re.findall(r"```(sh|python)\n(.*?)```", PAGES[page], re.DOTALL)


def run_block(kind: str, text: str, folder: Path, **variables: str) -> str:
    """Run commands ("sh") or a program ("python") of a page in a folder, and return what it printed."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables}
    if kind == "python":
        (folder / "program.py").write_text(text)  # functions of a stream are known by their source
        done = interpreters.run(folder / "program.py", cwd=folder, variables=variables, timeout=280)
    else:
        text = text.replace("shardwright ", "python -m pipeline ").replace("scripts/", f"{ROOT}/scripts/")
        paths = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment = {**os.environ, **paths, **variables}
        done = subprocess.run(["bash", "-ec", text], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout
