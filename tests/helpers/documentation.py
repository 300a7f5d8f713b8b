"""The pages that users read, and the blocks in them that run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In the order in which their blocks run, in one folder.
RUN = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("build", "train", "mix", "frameworks", "exchange", "format", "masks", "migrate", "answer")
    ),
)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}
README = PAGES["README.md"]


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of a page that runs."""
    return re.findall(r"```(sh|python)\n(.*?)```", PAGES[page], re.DOTALL)
