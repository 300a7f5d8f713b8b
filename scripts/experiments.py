"""Studies that change one thing in a run and nothing else: the figures of docs/experiments.md.

    python scripts/experiments.py memorise     how often a text must come to be known by heart
    python scripts/experiments.py worth        what each source, and a list of documents, is worth
    python scripts/experiments.py mix          a mix chosen by small runs, with and without matched repetition

The text is code, docstrings and package papers of this Python installation; nothing is downloaded. A tiny model trains in
minutes on one core. Losses are in nats a byte, on text that no run reads.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import random
import string
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from scripts import demo

SEQ_LEN, BATCH, CONTEXT = 128, 16, 8
REPEATS, TEXTS = (0, 1, 4, 16, 64), 8  # how often each text is inserted, and texts of each number
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the small source in the mix
State = tuple[dict[str, Any], nn.Module, torch.optim.Optimizer]


class Model(nn.Module):
    """Predicts each byte from the eight before it: small enough for a laptop, and able to learn a text by heart."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(384, 16)
        self.layers = nn.Sequential(nn.Linear(16 * CONTEXT, 128), nn.GELU(), nn.Linear(128, 384))

    def forward(self, ids: Tensor) -> Tensor:
        padded = functional.pad(self.bytes(ids), (0, 0, CONTEXT - 1, 0))
        logits: Tensor = self.layers(padded.unfold(1, CONTEXT, 1).flatten(2))
        return logits


def loss_of(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    return functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def train(stream: pipeline.Stream, steps: int, start: State | None = None) -> State:
    """Train for ``steps`` steps from the beginning, or from a copy of ``start``; return where the run is then."""
    if start is None:
        torch.manual_seed(0)
        model: nn.Module = Model()
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    else:
        state, model, optimizer = start[0], *copy.deepcopy(start[1:])
        stream.load_state_dict(state)
    for batch in itertools.islice(stream, steps):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return stream.state_dict(), model, optimizer


@torch.no_grad()
def validate(model: nn.Module, held_out: Mapping[str, Any], batches: int) -> dict[str, float]:
    """Return the mean loss on the first batches of each source."""
    found = {}
    for name, dataset in held_out.items():
        losses = [
            loss_of(model, batch).item() for batch in itertools.islice(dataset.pack(SEQ_LEN).batch(BATCH), batches)
        ]
        found[name] = sum(losses) / len(losses)
    return found


def build(folder: Path) -> Path:
    """Build a dataset of three named sources: code, docstrings and package papers."""
    sources: dict[str, list[dict[str, str]]] = {"code": [], "docstrings": [], "papers": []}
    library = Path(ast.__file__).parent
    for path in sorted(library.glob("*.py")) + sorted(library.glob("[a-m]*/*.py")):
        code = demo.read_text(path)[:8000]
        pieces = [code[at : at + 500] for at in range(0, len(code), 500)]  # so that a small source has many documents
        sources["code"] += [{"id": f"{path.relative_to(library)}:{n}", "text": text} for n, text in enumerate(pieces)]
        texts = enumerate(demo.prose_of(path))
        sources["docstrings"] += [{"id": f"{path.relative_to(library)}#{n}", "text": text} for n, text in texts]
    documents = itertools.dropwhile(lambda one: not one["id"].startswith("packages/"), demo.collect_documents())
    sources["papers"] += [one | {"text": one["text"][:8000]} for one in documents]
    pipeline.build(
        sources, folder, tokenizer="bytes", rules=(), val_fraction=0.1, progress=pipeline.Progress(quiet=True)
    )
    return folder


def memorise(folder: Path, steps: int) -> Iterator[str]:
    """Insert random texts 1 to 64 times, and show how well each is known at the end, compared with texts that never came."""
    draw, dataset = random.Random(0), pipeline.ShardDataset(folder)
    texts = ["".join(draw.choices(string.ascii_lowercase, k=64)) for _ in range(TEXTS * len(REPEATS))]
    times = [number for number in REPEATS[1:] for _ in range(TEXTS)]
    run = dataset.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH).insert(texts[TEXTS:], at=range(steps), times=times)
    _, model, _ = train(run, steps)
    yield "repeats   loss"
    for number, begin in zip(REPEATS, range(0, len(texts), TEXTS), strict=True):
        ids = torch.tensor([dataset.tokenizer.encode(text).tolist() for text in texts[begin : begin + TEXTS]])
        with torch.no_grad():
            loss = loss_of(model, {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}).item()
        yield f"{number:7}  {loss:5.2f}  {'█' * round(8 * loss)}"


def worth(folder: Path, steps: int, batches: int = 20) -> Iterator[str]:
    """Fork a run in its middle: once as it is, once without each source, once without a list of documents."""
    manifest = pipeline.Manifest.read(folder)
    lists: dict[str, list[str]] = {}
    for shard in manifest.splits["train"].shards:
        lists.setdefault(shard.source, []).extend(f"{shard.name}:{number}" for number in range(shard.documents))
    mixed = pipeline.mix(pipeline.ShardDataset(folder).sources(), temperature=1)
    run = mixed.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
    held_out = pipeline.ShardDataset(folder, "val").sources()
    fork = train(run, steps // 2)
    plain = validate(train(run, steps - steps // 2, fork)[1], held_out, batches)
    yield f"{'':30}" + "".join(f"{name:>12}" for name in plain)
    yield f"{'loss':30}" + "".join(f"{loss:12.3f}" for loss in plain.values())
    lists["every tenth document"] = [name for names in lists.values() for name in names[::10]]
    for name, documents in lists.items():
        changed = run.without(documents, reason=f"what is {name} worth?")
        losses = validate(train(changed, steps - steps // 2, fork)[1], held_out, batches)
        yield f"{'without ' + name:30}" + "".join(f"{losses[each] - plain[each]:+12.3f}" for each in plain)


def mix(folder: Path, steps: int, batches: int = 20, shares: Sequence[float] = SHARES) -> Iterator[str]:
    """Choose the share of a small source: at full size, and at an eighth with and without a subset of each source."""
    sources, held_out = pipeline.ShardDataset(folder).sources(), pipeline.ShardDataset(folder, "val").sources()
    small = {"code": sources["code"].subset(1 / 80), "docstrings": sources["docstrings"]}
    kinds: dict[str, tuple[Callable[[Any], Any], int]] = {
        "target": (lambda mixed: mixed, steps),
        "1/8, all data": (lambda mixed: mixed, steps // 8),
        "1/8, proxy": (lambda mixed: mixed.proxy(1 / 8), steps // 8),
    }
    yield f"{'share of code':16}" + "".join(f"{share:8g}" for share in shares) + f"{'best':>8}"
    for kind, (of, count) in kinds.items():
        losses, epochs = list[float](), list[float]()
        for share in shares:
            mixed = of(pipeline.mix(small, {"code": share, "docstrings": 1 - share}))
            run = mixed.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
            found = validate(train(run, count)[1], {name: held_out[name] for name in small}, batches)
            losses.append(sum(found.values()) / len(found))
            epochs.append(run.plan(tokens=count * BATCH * SEQ_LEN).sources["code"]["epochs"])
        yield f"{kind:16}" + "".join(f"{loss:8.3f}" for loss in losses) + f"{shares[losses.index(min(losses))]:8g}"
        yield f"{'  epochs of code':16}" + "".join(f"{number:8.1f}" for number in epochs)


STUDIES = {"memorise": (memorise, 400), "worth": (worth, 400), "mix": (mix, 480)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--steps", type=int, help="steps of a whole run (default: that of the page)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    study, steps = STUDIES[options.study]
    with tempfile.TemporaryDirectory() as folder:
        for line in study(build(Path(folder, "shards")), options.steps or steps):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
