"""Draw the pictures of docs/: what a build does, the order of an epoch, and figures beside peers.

    python scripts/draw.py [DATASET]

build.svg shows the counts in the manifest of DATASET, such as demo/shards of ``make demo``; without DATASET, it is not drawn.
`pipeline.stream.order` computes the order, and docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import argparse
import colorsys
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.builder.report.funnel import FunnelRow, funnel
from pipeline.shards.manifest import Manifest
from pipeline.stream.order import Blocks, RankStep, Sequences, Shuffle

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, MARGIN, CELL, GAP = 400, 16, 20, 3  # read on a telephone: no label is below 14 px there
SHOWN = 520  # pixels, where there is room
KEPT, GONE, INK, SOFT, LINE = "#2f74d0", "#dd7a4d", "#16202b", "#57606a", "#d0d7de"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, metavar="DATASET", help="a dataset that a build made")
    parser.add_argument("--output", type=Path, default=DOCS, help="where to write (default: docs)")
    options = parser.parse_args(argv)
    pictures = {"order.svg": draw_order(), "figures.svg": draw_figures()}
    if options.dataset is not None:
        pictures["build.svg"] = draw_build(Manifest.read(options.dataset))
    for name, picture in pictures.items():
        (options.output / name).write_text(picture, encoding="utf-8")
    return 0


def text(
    x: float, y: float, words: str, colour: str = INK, size: int = 14, anchor: str = "start", weight: int = 400
) -> str:
    style = f'fill="{colour}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{colour}" {more}/>'


def card(title: str, below: Sequence[str], height: int, parts: Sequence[str]) -> str:
    """Return a picture on a card of its own, which is legible on light and dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{SHOWN}" viewBox="0 0 {WIDTH} {height}" role="img" '
    head += f'aria-label="{escape(title)}" '
    frame = box(1, 1, WIDTH - 2, height - 2, "#fff", f'rx="12" stroke="{LINE}"')
    words = [text(MARGIN, 34, title, size=19, weight=700)]
    words += [text(MARGIN, 58 + 19 * line, said, SOFT) for line, said in enumerate(below)]
    return "\n".join([f'{head}font-family="system-ui, sans-serif">', frame, *words, *parts, "</svg>\n"])


# What a build does


def group(row: FunnelRow) -> str:
    name = row.what.removeprefix("dropped by ")
    if name.startswith("language"):
        return "other languages"
    if name == "words":
        return "too short or too long"
    if "gram" in name or name.startswith("duplicate_"):
        return "repeats itself"
    return name if "duplicates" in name else "other rules"


def draw_build(manifest: Manifest) -> str:
    """Draw the documents and tokens of a dataset that are left after each group of rules and stages."""
    first, *removed, _kept = funnel(manifest.counts)
    groups: dict[str, tuple[int, int]] = {}
    for row in removed:
        documents, tokens = groups.get(group(row), (0, 0))
        groups[group(row)] = documents + row.documents, tokens + row.tokens
    changed = [(0, 0), *groups.values(), (0, 0)]
    left, parts, y = (first.documents, first.tokens), [], 104
    ends, whole = (262, WIDTH - MARGIN), WIDTH - 2 * MARGIN
    parts += [text(x, y, head, SOFT, anchor="end") for x, head in zip(ends, ("documents", "tokens"), strict=True)]
    for name, change in zip(("read", *groups, "kept"), changed, strict=True):
        y, weight = y + 42, 400 if any(change) else 700
        left = left[0] + change[0], left[1] + change[1]
        parts.append(text(MARGIN, y - 14, f"− {name}" if any(change) else name, weight=weight))
        of_all = zip(ends, (0, 7), (7, 3), (first.documents, first.tokens), left, change, strict=True)
        for x, above, height, total, now, took in of_all:
            width, lost = whole * now / max(1, total), whole * max(0, -took) / max(1, total)
            parts.append(text(x, y - 14, f"{took or now:,}".replace("-", "−"), anchor="end", weight=weight))
            parts += [box(MARGIN, y + above - 9, width, height, KEPT)]
            parts += [box(MARGIN + width, y + above - 9, lost, height, GONE)]
    below = ("Thick bars are documents, thin ones tokens.", "The text is that of a Python installation.")
    return card("What a build does to a corpus", below, y + 22, parts)


# The order of an epoch


def cell(x: float, y: float, document: int, documents: int) -> str:
    """Draw a document; its colour is its position in the files."""
    red, green, blue = (
        round(255 * part) for part in colorsys.hls_to_rgb(0.62 - 0.55 * document / documents, 0.72, 0.75)
    )
    colour = f"#{red:02x}{green:02x}{blue:02x}"
    number = text(x + CELL / 2 - 1, y + 16, str(document), anchor="middle")
    return box(x, y, CELL - 1, CELL + 2, colour, 'rx="3"') + number


def draw_order() -> str:
    """Draw the first epoch of 16 documents in 11 blocks: 5 windows, 4 lanes, and batches of two ranks, then of four."""
    sizes, lanes = np.array([1, 2, 2, 1, 1, 2, 1, 2, 1, 2, 1]), 4
    total, ends = int(sizes.sum()), np.cumsum(sizes).tolist()
    shuffle = Shuffle(Blocks(np.arange(len(sizes) + 1), sizes, sizes, total, 1), lanes, window=2, seed=0)
    order, epoch = Sequences(total, 1, lanes), shuffle.epoch(0)
    blocks = [[*range(begin, end)] for begin, end in pairwise([0, *ends])]
    windows = [[blocks[k] for k in epoch.window_blocks(number).tolist()] for number in range(shuffle.windows)]
    shuffled = []
    for number, window in enumerate(windows):
        listed: NDArray[np.int64] = np.concatenate(window)
        shuffled.append(listed[shuffle.document_order(0, number, len(listed))].tolist())
    parts: list[str] = []

    def row(y: int, title: str, windows: Sequence[Sequence[list[int]]], *, framed: bool = True) -> list[int]:
        """Draw a row of windows, each with groups of documents; return the left edge of each document."""
        parts.append(text(MARGIN, y - 12, title))
        x, begins = MARGIN, []
        for groups in windows:
            left = x - 3
            for documents in groups:
                parts.extend(cell(x + CELL * k, y, document, total) for k, document in enumerate(documents))
                begins += [x + CELL * k for k in range(len(documents))]
                x += CELL * len(documents) + GAP
            if framed:
                parts.append(box(left, y - 4, x - left - 3, CELL + 8, "none", f'stroke="{SOFT}" rx="5"'))
                x += GAP
        return begins

    row(112, "Files: 16 documents in 11 blocks", [blocks], framed=False)
    row(178, "Epoch 0: blocks are permuted, and form windows", windows)
    begins = row(244, "Each window is shuffled; 4 lanes read them", [[each] for each in shuffled])
    for lane, (start, end) in enumerate(pairwise(order.begin_of_lane(0, lane) for lane in range(lanes + 1))):
        left, right = begins[start], begins[end - 1] + CELL - 4
        parts.append(f'<path d="M{left} 280H{right - 6}" stroke="{INK}" stroke-width="2"/>')
        parts.append(f'<path d="M{right} 280l-8 -5v10z" fill="{INK}"/>' + text(left, 300, f"lane {lane}", SOFT))
    parts.append(text(MARGIN, 334, "A step takes one row from each lane:"))
    sequences = np.concatenate(shuffled)[order.positions(0, np.arange(total))].tolist()
    y = 346
    for step, ranks in enumerate((2, 2, 4, 4)):
        if step == 2:
            parts += [
                f'<path d="M{MARGIN} {y + 4}H{WIDTH - MARGIN}" stroke="{GONE}" stroke-width="2" stroke-dasharray="5 4"/>',
                text(MARGIN, y + 26, f"Stop; the state is one number: row {lanes * step}.", weight=700),
                text(MARGIN, y + 46, "Four ranks go on, and replay nothing:"),
            ]
            y += 58
        parts.append(text(MARGIN, y + 16, f"step {step}", weight=700))
        for rank in range(ranks):
            x, taken = MARGIN + 56 + 312 // ranks * rank, RankStep(lanes * step, lanes, rank, ranks, lanes)
            parts.append(text(x, y + 16, f"rank {rank}", SOFT))
            parts += [cell(x + 48 + CELL * k, y, sequences[i], total) for k, i in enumerate(taken)]
        y += 30
    below = ("Numbers are documents.", "Colours are their positions in the files.")
    return card("The order is arithmetic", below, y + 14, parts)


# Figures beside peers


def figures(label: str, unit: str) -> list[float]:
    """Return the numbers with a unit in the row of docs/benchmarks.md that begins with a label."""
    lines = (DOCS / "benchmarks.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {label}"))
    return [float(number.replace(",", "")) for number in re.findall(rf"([\d.,]+) ?{unit}", line.split("|", 2)[2])]


SPEEDS = (
    ("a hand-tuned np.memmap loader", "against a hand-tuned", "x"),
    ("nanoGPT's memmap loader", "against the memmap loader as nanoGPT", "x"),
    ("two workers of a memmap Dataset", "two workers of a DataLoader", "x"),
    ("webdataset on the same shards", "against webdataset on the same", "x"),
    ("Hugging Face, encoding text alone", "against encoding alone by Hugging", "x"),
    ("datasketch, near dedup", "against datasketch", "x"),
    ("datatrove's filters alone, CPU time of a build", "per CPU second, against datatrove", "x"),
    ("datatrove's filters alone, time of a build", "per second, the same", "x"),
)
MEMORY = (
    ("stream of 650 MB of shards", "memory that the kernel cannot drop", 0),
    ("stream of a mix of 20 sources", "memory that the kernel cannot drop", 1),
    ("stream of 20 GB from a server 30 ms away", "memory at that speed", -1),
    ("build of 47,006 documents", "whole build, 47,006", 0),
    ("build of 752,096 documents", "752,096", 0),
    ("build of 4,371,558 documents", "whole build | 999", 0),
)


def bars(y: int, values: Sequence[tuple[str, float, str]]) -> Iterator[str]:
    most = max(value for _, value, _ in values)
    for number, (label, value, said) in enumerate(values):
        at, width = y + 42 * number, 300 * value / most
        yield text(MARGIN, at, label.strip())
        yield box(MARGIN, at + 8, width, 13, KEPT)
        yield text(MARGIN + width + 8, at + 20, said, weight=600)


def draw_figures() -> str:
    """Draw the figures of docs/benchmarks.md on speed and memory."""
    speeds = [(label, times := figures(row, unit)[0], f"{times:g}x") for label, row, unit in SPEEDS]
    memory = [(label, size := figures(row, "MB")[k], f"{size:g} MB") for label, row, k in MEMORY]
    y = 148 + 42 * len(speeds)
    title = text(MARGIN, y, "Memory of all processes", weight=700)
    below = ("Two cores of a shared machine, November 2026.", "Each ratio is of one run, by scripts/bench_*.py.")
    heads = [text(MARGIN, 108, "Times as fast as", weight=700), title]
    return card(
        "Speed and memory", below, y + 22 + 42 * len(memory), [*heads, *bars(136, speeds), *bars(y + 28, memory)]
    )


if __name__ == "__main__":
    sys.exit(main())
