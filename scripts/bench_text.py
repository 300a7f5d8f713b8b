"""Compare streams of raw text with reading, parsing and encoding alone, and with other ways to stream documents.

    python scripts/bench_text.py --texts '/data/part-*.jsonl.zst'

Rates of `speed` and `ways` are per CPU second of a process with one thread for arithmetic, so other work on the machine
matters less. The default texts are parts of the sources of this Python installation. All parts take about three minutes
for 70 MB of text.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.progress import Progress
from pipeline.text.tokens.tokenizer import Tokenizer, load_tokenizer
from scripts.bench.data import BATCH, SEQ_LEN, read_lines, text_files, tokenizer_folder
from scripts.bench.process import cpu_seconds, memory
from scripts.bench.remote import LATENCY, RATE, serving
from scripts.bench.report import median, ratio, table

SLOW = 1_000  # documents for Hugging Face's encoder
SORTED = 300_000  # documents of the sorted corpus
EPOCH_SHARES = (0, 0.1, 0.5, 0.9)  # positions in an epoch


class Texts(NamedTuple):
    """The files that the benches read, with their number of ``tokens``; the tokenizer's folder; a folder to write; rounds."""

    files: list[str]
    tokenizer: Path
    tokens: int
    directory: Path
    rounds: int

    def dataset(self, files: Sequence[str] | None = None, **options: Any) -> Any:
        return pipeline.TextDataset(list(files or self.files), self.tokenizer, **options)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"parts to run: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--texts", help="glob of .jsonl.zst files (default: made from Python's own sources)")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "shardwright-bench")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which loaders take turns (default: 3)")
    options = parser.parse_args(argv)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    files = text_files(options.directory, options.texts)
    folder = tokenizer_folder(options.directory, files)
    tokens = sum(encoded(read_lines(files), load_tokenizer(folder)))
    texts = Texts(files, folder, tokens, options.directory, options.rounds)
    for part in options.parts or PARTS:
        PARTS[part](texts)
    return 0


def speed(texts: Texts) -> None:
    """Print the tokens per CPU second of loaders that read all texts in turn, and the padding of best fit."""
    tokenizer, files = load_tokenizer(texts.tokenizer), texts.files
    lines = list(read_lines(files))
    once, endless = texts.dataset(epochs=1).shuffle(seed=0), texts.dataset().shuffle(seed=0)
    mixed, sequences = three_of(texts).shuffle(seed=0), 3 * texts.tokens // SEQ_LEN
    fitted = once.pack(SEQ_LEN, best_fit=True).batch(BATCH)
    live = pipeline.TextDataset(lambda: records_of(files), texts.tokenizer, epochs=1)
    half, ruled = once.filter(lambda record: zlib.crc32(record.id.encode()) % 2), once.filter(rules="gopher")
    alone, single, mix = "read, parse and encode alone", "a stream, three passes", "a mix of three, as long"
    loaders: dict[str, tuple[int, Callable[[], Iterator[int]]]] = {
        "encode alone, texts in memory": (1, lambda: encoded(iter(lines), tokenizer)),
        alone: (1, lambda: encoded(read_lines(files), tokenizer)),
        "a stream": (1, lambda: packed(once)),
        "a stream, half filtered away": (1, lambda: packed(half)),
        "a stream, rules gopher": (1, lambda: packed(ruled)),
        "a stream, best fit": (1, lambda: (int(batch["valid_tokens"]) for batch in fitted)),
        "a stream of a function that reads and parses": (1, lambda: packed(live)),
        single: (3, lambda: packed(endless.take(sequences))),
        mix: (3, lambda: packed(mixed.take(sequences))),
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(texts.rounds):  # the first round fills the encoders' caches of words
        for name, (passes, make) in loaders.items():
            begin = time.process_time()
            for _ in make():
                pass
            rates[name].append(passes * texts.tokens / (time.process_time() - begin) / 1e6)
    begin = time.process_time()
    slow = sum(encoded(iter(lines[:SLOW]), tokenizer, slow=True)) / (time.process_time() - begin) / 1e6
    rates["encode by Hugging Face, texts in memory"] = [slow] * texts.rounds
    rows = [(name, median(rate, 1), ratio(rate, rates[alone])) for name, rate in rates.items()]
    title = f"Passes over {texts.tokens / 1e6:.1f} M tokens of text by {tokenizer.encoder}; a mix of three is {{}} of a stream"
    table(title.format(ratio(rates[mix], rates[single])), ("loader", "Mtokens/s", "of reading and encoding"), rows)
    share = statistics.mean(float(np.mean(batch["labels"].numpy() != -100)) for batch in islice(fitted, 100))
    print(f"\nbest fit: {share:.2%} of positions hold a token that counts")


def three_of(texts: Texts) -> pipeline.Stream:
    """Return a mix of three thirds of the files, with their sizes as weights."""
    parts = {str(number): part for number in range(3) if (part := texts.files[number::3])}
    sizes = {name: sum(Path(file).stat().st_size for file in part) for name, part in parts.items()}
    return pipeline.mix({name: texts.dataset(part) for name, part in parts.items()}, sizes)


def encoded(texts: Iterator[str], tokenizer: Tokenizer, slow: bool = False) -> Iterator[int]:
    """Encode only; yield the numbers of tokens."""
    from tokenizers import Tokenizer as HuggingFace

    definition = HuggingFace.from_str(tokenizer.definition) if slow else None
    while part := list(islice(texts, 64)):
        if definition is None:
            yield len(tokenizer.encode_flat(part, eos=True)[0])
        else:
            yield sum(len(one.ids) + 1 for one in definition.encode_batch(part, add_special_tokens=False))


def packed(stream: pipeline.Stream) -> Iterator[int]:
    return (int(batch["valid_tokens"]) for batch in stream.pack(SEQ_LEN).batch(BATCH))


def remote(texts: Texts) -> None:
    """Print the seconds to the first batch of a mix of two texts from the network, at the start and resumed."""
    rows, state = [], None
    for name in ("at the start", "resumed after 20 batches"):
        with serving(Path(texts.files[0]).parent) as url:
            begin = time.monotonic()
            urls = [f"{url}/{Path(file).name}" for file in texts.files]
            mixed = {"a": texts.dataset(urls[::2]), "b": texts.dataset(urls[1::2] or urls)}
            stream = pipeline.mix(mixed, {"a": 1, "b": 1}).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
            if state is not None:
                # The state must name the urls of this server, whose port is new.
                stream.load_state_dict({**state, "shape": stream.state_dict()["shape"]})
            batches = iter(stream)
            next(batches)
            rows.append((name, f"{time.monotonic() - begin:.1f}"))
            for _ in islice(batches, 19):
                pass
            state = stream.state_dict()
    title = f"A mix of two texts from {LATENCY * 1e3:.0f} ms away at {RATE / 1e6:.0f} MB/s"
    table(title, ("", "first batch, s"), rows)


def ways(texts: Texts) -> None:
    """Print the time and memory of each way to stream the documents, in its own process, and when a build pays."""
    shards = texts.directory / f"built-{texts.tokens}"
    with tempfile.TemporaryDirectory(dir=texts.directory) as folder:
        _, build, _ = alone(built, texts, Path(folder) / "built")
        if not shards.exists():
            (Path(folder) / "built").rename(shards)
    measured = {name: alone(streamed, texts, shards, name) for name in WAYS}
    rows = [
        (name, f"{first:.1f}", f"{texts.tokens / cpu / 1e6:.1f}", f"{used / 1e6:,.0f}")
        for name, (first, cpu, used) in measured.items()
    ]
    heads = ("way", "first batch, s", "Mtokens/s of a core", "memory, MB")
    table(f"Ways to stream {texts.tokens / 1e6:.1f} M tokens", heads, rows)
    text, tokens = measured["a stream of texts"][1], measured["shards"][1]
    billion = 1e9 / texts.tokens
    print(
        f"\na billion tokens, seconds of a core: a build {build * billion:.0f}, a pass over shards {tokens * billion:.1f}, over "
        f"text {text * billion:.0f}: a build pays after {build / (text - tokens):.1f} passes"
    )


def alone(function: Callable[..., tuple[float, float, float]], *arguments: Any) -> tuple[float, float, float]:
    """Call a function in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def built(texts: Texts, output: Path) -> tuple[float, float, float]:
    """Return the wall seconds, CPU seconds and memory of a build with default filters."""
    begin, before = time.monotonic(), cpu_seconds(own=True)
    pipeline.build(
        texts.files, output, tokenizer=str(texts.tokenizer), val_fraction=0, workers=1, progress=Progress(quiet=True)
    )
    return time.monotonic() - begin, cpu_seconds(own=True) - before, memory()


def streamed(texts: Texts, shards: Path, name: str) -> tuple[float, float, float]:
    """Return a way's seconds to the first batch, its CPU seconds for all tokens of the texts, and its memory."""
    torch.set_num_threads(1)
    begin = time.monotonic()
    stream = WAYS[name](texts, shards).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
    batches = iter(stream)
    next(batches)
    first, before, count = time.monotonic() - begin, time.process_time(), 0
    while count < texts.tokens:
        count += int(next(batches)["valid_tokens"])
    return first, (time.process_time() - before) * texts.tokens / count, memory()


def iterable_dataset(files: list[str]) -> Any:
    import datasets

    return datasets.IterableDataset.from_generator(records_of, gen_kwargs={"files": files})


def records_of(files: list[str]) -> Iterator[dict[str, str]]:
    return ({"text": text} for text in read_lines(files))


WAYS: dict[str, Callable[[Texts, Path], Any]] = {
    "shards": lambda texts, shards: pipeline.ShardDataset(shards),
    "a stream of texts": lambda texts, shards: texts.dataset(),
    "a mix of three texts": lambda texts, shards: three_of(texts),
    "live, a function": lambda texts, shards: pipeline.TextDataset(lambda: records_of(texts.files), texts.tokenizer),
    "live, a datasets.IterableDataset": lambda texts, shards: pipeline.TextDataset(
        iterable_dataset(texts.files), texts.tokenizer
    ),
    "in memory": lambda texts, shards: pipeline.ShardDataset.from_texts(read_lines(texts.files), texts.tokenizer),
}


def shuffle(texts: Texts) -> None:
    """Print the share of pairs of neighbours in the stream within 1% of sorted input, at several positions."""
    rows = [
        (f"{count}", kind, *(f"{share:.1%}" for share in near_pairs(sorted_files(texts.directory, count, kind))))
        for count, kind in ((1, "jsonl.zst"), (32, "jsonl.zst"), (1, "jsonl"))
    ]
    heads = ("files", "kind", *(f"after {part:.0%}" for part in EPOCH_SHARES))
    table(f"Near pairs of sorted text, {SORTED:,} documents of 1 kB: 2% is perfect", heads, rows)


def near_pairs(files: Sequence[str], neighbours: int = 512) -> list[float]:
    """Return the share of near pairs at each of `EPOCH_SHARES`."""
    stream = pipeline.TextDataset(files, "bytes").shuffle(seed=0).documents(max_length=8).batch(BATCH)
    batches = iter(stream.numpy())
    digits, read, shares = 10 ** np.arange(7, -1, -1), 0, []
    for part in EPOCH_SHARES:
        while read < part * SORTED:
            read += len(next(batches)["input_ids"])
        numbers = [(next(batches)["input_ids"] - ord("0")) @ digits for _ in range(neighbours // BATCH)]
        read += neighbours
        at = np.concatenate(numbers)
        gaps = np.abs(at[:, None] - at[None, :])[np.triu_indices(neighbours, 1)]
        shares.append(float((gaps <= SORTED // 100).mean()))
    return shares


def sorted_files(directory: Path, files: int, kind: str) -> list[str]:
    """Write sorted documents of 1 kB that begin with their number, unless the files exist."""
    folder = directory / f"sorted-{SORTED}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03d}-of-{files}.{kind}" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.exists():
            begin, end = (SORTED * n // files for n in (number, number + 1))
            lines = b"".join(b'{"text": "%08d%s"}\n' % (number, b" word" * 195) for number in range(begin, end))
            path.write_bytes(zstandard.compress(lines) if kind.endswith("zst") else lines)
    return [str(path) for path in paths]


PARTS = {"speed": speed, "remote": remote, "ways": ways, "shuffle": shuffle}

if __name__ == "__main__":
    sys.exit(main())
