"""The part of ``bench_stream.py`` about raw text: tokenizing on the fly, beside reading, parsing and encoding alone.

Rates are per second of CPU of this process, which has one thread of its own, so that other work on the machine counts
less. Without texts given, they are pieces of the sources that this Python installation carries.
"""

from __future__ import annotations

import glob
import io
import os
import statistics
import sysconfig
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
import zstandard

import pipeline
from pipeline.text.tokenizer.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from scripts._report import Report

SEQ_LEN, BATCH = 2048, 32
_ROUNDS, _BATCHES = 7, 40
_COPIES = 1_000
_FILES, _PIECE = 6, 2_000  # characters of a made document
_SORTED = 300_000  # documents
_PLACES = (0, 0.1, 0.5, 0.9)  # of an epoch


def measure(directory: Path, texts: str | None, report: Report) -> None:
    """Print speed, time to the first batch, the padding of best fit, and how well sorted text is shuffled."""
    files = text_files(directory, texts)
    tokenizer = load_tokenizer(tokenizer_folder(directory, files))

    def stream(paths: Sequence[str] = files) -> pipeline.Stream:
        return pipeline.TextDataset(paths, tokenizer).shuffle(seed=0)

    packed, fitted = stream().pack(SEQ_LEN).batch(BATCH), stream().pack(SEQ_LEN, best_fit=True).batch(BATCH)
    filtered = stream().filter(lambda record: zlib.crc32(record.id.encode()) % 2).pack(SEQ_LEN).batch(BATCH)
    loaders = {
        "limit: read, parse and encode": alone(files, tokenizer, slow=False),
        "shardwright": counted(packed),
        "shardwright, half filtered away": counted(filtered),
        "shardwright, best fit": counted(fitted),
        "read, parse and encode by Hugging Face": alone(files, tokenizer, slow=True),
    }
    rates = take_turns(loaders)
    ours = rates["shardwright"]
    rows = [(f"{ours / rate:.2f}", name, f"{rate:.1f}") for name, rate in rates.items()]
    report.table(
        f"Text tokenized on the fly by {tokenizer.encoder}, one core", ("shardwright is x", "loader", "Mtokens/s"), rows
    )
    share = statistics.mean(float(np.mean(batch["labels"].numpy() != -100)) for batch in islice(fitted, 100))
    report.note(f"best fit: {share:.2%} of places hold a token that counts")

    many = copies(directory, files)
    cells = []
    for name, paths in (("once", files), (f"{_COPIES:,} times", many)):
        size = sum(map(os.path.getsize, paths))
        begin = time.perf_counter()
        iterator = iter(made := stream(paths).pack(SEQ_LEN).batch(BATCH))
        next(iterator)
        first = time.perf_counter() - begin
        for _ in islice(iterator, 100):
            pass
        state = made.state_dict()
        begin = time.perf_counter()
        resumed = stream(paths).pack(SEQ_LEN).batch(BATCH)
        resumed.load_state_dict(state)
        next(iter(resumed))
        cells.append((name, f"{size / 1e6:,.0f}", f"{first * 1e3:,.0f}", f"{(time.perf_counter() - begin) * 1e3:,.0f}"))
    report.table(
        "Raw text to the first batch",
        ("the files", "MB", "first batch, ms", "resumed after 100, with hashes, ms"),
        cells,
    )
    shuffled = [
        (f"{count}", kind, *(f"{share:.1%}" for share in near_text_pairs(sorted_files(directory, count, kind))))
        for count, kind in ((1, "jsonl.zst"), (32, "jsonl.zst"), (1, "jsonl"))
    ]
    heads = ("files", "kind", *(f"after {place:.0%}" for place in _PLACES))
    report.table(f"Near pairs of sorted text, {_SORTED:,} documents of 1 kB: 2% is perfect", heads, shuffled)


def near_text_pairs(files: Sequence[str], neighbours: int = 512) -> list[float]:
    """Return the share of pairs of neighbours in the stream that lie within 1% of sorted input, after parts of an epoch."""
    stream = pipeline.TextDataset(files, "bytes").shuffle(seed=0).documents(max_length=8).batch(BATCH)
    batches = iter(stream.numpy())
    digits, read, shares = 10 ** np.arange(7, -1, -1), 0, []
    for place in _PLACES:
        while read < place * _SORTED:
            read += len(next(batches)["input_ids"])
        found = [(next(batches)["input_ids"] - ord("0")) @ digits for _ in range(neighbours // BATCH)]
        read += neighbours
        at = np.concatenate(found)
        gaps = np.abs(at[:, None] - at[None, :])[np.triu_indices(neighbours, 1)]
        shares.append(float((gaps <= _SORTED // 100).mean()))
    return shares


def sorted_files(directory: Path, files: int, kind: str) -> list[str]:
    """Write documents of 1 kB that begin with their number, in order, where they are not there yet."""
    folder = directory / f"sorted-{_SORTED}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03d}-of-{files}.{kind}" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.exists():
            begin, end = (_SORTED * n // files for n in (number, number + 1))
            lines = b"".join(b'{"text": "%08d%s"}\n' % (place, b" word" * 195) for place in range(begin, end))
            path.write_bytes(zstandard.compress(lines) if kind.endswith("zst") else lines)
    return [str(path) for path in paths]


def text_files(directory: Path, texts: str | None) -> list[str]:
    """Return the files of a glob, or, without one, made ones."""
    return sorted(glob.glob(texts)) if texts else made_texts(directory)


def made_texts(directory: Path) -> list[str]:
    """Write pieces of Python sources as ``.jsonl.zst``, where they are not there yet."""
    folder = directory / "texts"
    paths = [folder / f"part-{number}.jsonl.zst" for number in range(_FILES)]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        lines: list[list[bytes]] = [[] for _ in paths]
        for number, source in enumerate(sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))):
            text = source.read_text(encoding="utf-8", errors="ignore")
            for begin in range(0, len(text), _PIECE):
                record = {"id": f"{number}-{begin}", "text": text[begin : begin + _PIECE]}
                lines[number % _FILES].append(orjson.dumps(record))
        for path, written in zip(paths, lines, strict=True):
            path.write_bytes(zstandard.compress(b"\n".join(written)))
    return [str(path) for path in paths]


def tokenizer_folder(directory: Path, files: Sequence[str]) -> Path:
    """Return the folder of a BPE of 32,000 ids, trained on the beginning of the first file if it is not there yet."""
    path = directory / f"tokenizer-{size_of(files)}"
    if not (path / "tokenizer.json").exists():
        train_tokenizer(list(islice(read(files[:1]), 4_000)), 32_000).save(path)
    return path


def size_of(files: Sequence[str]) -> int:
    return sum(map(os.path.getsize, files))


def read(files: Sequence[str]) -> Iterator[str]:
    for file in files:
        with open(file, "rb") as raw:
            for line in io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw), 1 << 20):
                yield orjson.loads(line)["text"]


def alone(files: Sequence[str], tokenizer: Tokenizer, slow: bool) -> Iterator[int]:
    """Read, parse and encode, and nothing else: yield how many tokens come, again and again."""
    if slow:
        from tokenizers import Tokenizer as HuggingFace

        definition = HuggingFace.from_str(tokenizer.definition)
    while True:
        texts = read(files)
        while part := list(islice(texts, 64)):
            if slow:
                yield sum(len(one.ids) for one in definition.encode_batch(part, add_special_tokens=False))
            else:
                yield len(tokenizer.encode_flat(part, eos=True)[0])


def counted(stream: pipeline.Stream) -> Iterator[int]:
    return (int(batch["valid_tokens"]) for batch in stream)


def take_turns(loaders: dict[str, Iterator[int]]) -> dict[str, float]:
    """Return each loader's median rate over rounds in turn, in Mtokens per second of CPU."""
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(_ROUNDS + 1):
        for name, loader in loaders.items():
            tokens, begin = 0, time.process_time()
            while tokens < _BATCHES * SEQ_LEN * BATCH:
                tokens += next(loader)
            if number:
                found[name].append(tokens / (time.process_time() - begin) / 1e6)
    return {name: statistics.median(rates) for name, rates in found.items()}


def copies(directory: Path, files: Sequence[str]) -> list[str]:
    """Return every file many times over, as links."""
    folder = directory / f"text-copies-{size_of(files)}"
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(_COPIES):
        for file in files:
            path = folder / f"{number:06d}-{Path(file).name}"
            if not path.exists():
                path.symlink_to(Path(file).resolve())
            made.append(str(path))
    return made
