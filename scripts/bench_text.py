"""Compare streams of raw text with reading, parsing and encoding alone, by the same encoder and by Hugging Face's.

    python scripts/bench_text.py --texts '/data/part-*.jsonl.zst'

Rates are per second of CPU of this process, which has one thread of its own, so that other work on the machine counts
less. Without texts given, they are pieces of the sources that this Python installation carries.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from scripts.bench.data import BATCH, SEQ_LEN, TOKENS_PER_BATCH, read_lines, text_files, tokenizer_folder
from scripts.bench.report import median, ratio, table

ROUNDS, BATCHES = 7, 40
SORTED = 300_000  # documents
PLACES = (0, 0.1, 0.5, 0.9)  # of an epoch


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--texts", help="glob of .jsonl.zst files (default: made of Python's own sources)")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "shardwright-bench")
    options = parser.parse_args(argv)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    for part in options.parts or PARTS:
        PARTS[part](options.directory, options.texts)
    return 0


def speed(directory: Path, texts: str | None) -> None:
    """Tokens a second of CPU, loader by loader in turn, and the padding of best fit."""
    files = text_files(directory, texts)
    tokenizer = load_tokenizer(tokenizer_folder(directory, files))

    def stream() -> pipeline.Stream:
        return pipeline.TextDataset(files, tokenizer).shuffle(seed=0)

    fitted = stream().pack(SEQ_LEN, best_fit=True).batch(BATCH)
    live = pipeline.TextDataset(lambda: ({"text": text} for text in read_lines(files)), tokenizer)
    filtered = stream().filter(lambda record: zlib.crc32(record.id.encode()) % 2).pack(SEQ_LEN).batch(BATCH)
    loaders = {
        "read, parse and encode alone, the limit": alone(files, tokenizer, slow=False),
        "shardwright": counted(stream().pack(SEQ_LEN).batch(BATCH)),
        "shardwright, half filtered away": counted(filtered),
        "shardwright, best fit": counted(fitted),
        "shardwright, a function that reads and parses": counted(live.pack(SEQ_LEN).batch(BATCH)),
        "read, parse and encode by Hugging Face": alone(files, tokenizer, slow=True),
    }
    rates = take_turns(loaders)
    rows = [(ratio(rates["shardwright"], rate), name, median(rate, 1)) for name, rate in rates.items()]
    title = f"Text tokenized on the fly by {tokenizer.encoder}, one core"
    table(title, ("shardwright is x", "loader", "Mtokens/s"), rows)
    share = statistics.mean(float(np.mean(batch["labels"].numpy() != -100)) for batch in islice(fitted, 100))
    print(f"\nbest fit: {share:.2%} of positions hold a token that counts")


def shuffle(directory: Path, texts: str | None) -> None:
    """Pairs of neighbours in the stream that lie within 1% of sorted input, after parts of an epoch."""
    rows = [
        (f"{count}", kind, *(f"{share:.1%}" for share in near_pairs(sorted_files(directory, count, kind))))
        for count, kind in ((1, "jsonl.zst"), (32, "jsonl.zst"), (1, "jsonl"))
    ]
    heads = ("files", "kind", *(f"after {place:.0%}" for place in PLACES))
    table(f"Near pairs of sorted text, {SORTED:,} documents of 1 kB: 2% is perfect", heads, rows)


def near_pairs(files: Sequence[str], neighbours: int = 512) -> list[float]:
    """Return the share of near pairs after parts of an epoch."""
    stream = pipeline.TextDataset(files, "bytes").shuffle(seed=0).documents(max_length=8).batch(BATCH)
    batches = iter(stream.numpy())
    digits, read, shares = 10 ** np.arange(7, -1, -1), 0, []
    for place in PLACES:
        while read < place * SORTED:
            read += len(next(batches)["input_ids"])
        numbers = [(next(batches)["input_ids"] - ord("0")) @ digits for _ in range(neighbours // BATCH)]
        read += neighbours
        at = np.concatenate(numbers)
        gaps = np.abs(at[:, None] - at[None, :])[np.triu_indices(neighbours, 1)]
        shares.append(float((gaps <= SORTED // 100).mean()))
    return shares


def sorted_files(directory: Path, files: int, kind: str) -> list[str]:
    """Write documents of 1 kB that begin with their number, in order, where they are not there yet."""
    folder = directory / f"sorted-{SORTED}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03d}-of-{files}.{kind}" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.exists():
            begin, end = (SORTED * n // files for n in (number, number + 1))
            lines = b"".join(b'{"text": "%08d%s"}\n' % (place, b" word" * 195) for place in range(begin, end))
            path.write_bytes(zstandard.compress(lines) if kind.endswith("zst") else lines)
    return [str(path) for path in paths]


def alone(files: Sequence[str], tokenizer: Tokenizer, slow: bool) -> Iterator[int]:
    """Read, parse and encode, and nothing else: yield how many tokens there are, again and again."""
    from tokenizers import Tokenizer as HuggingFace

    definition = HuggingFace.from_str(tokenizer.definition)
    while True:
        texts = read_lines(files)
        while part := list(islice(texts, 64)):
            if slow:
                yield sum(len(one.ids) for one in definition.encode_batch(part, add_special_tokens=False))
            else:
                yield len(tokenizer.encode_flat(part, eos=True)[0])


def counted(stream: pipeline.Stream) -> Iterator[int]:
    return (int(batch["valid_tokens"]) for batch in stream)


def take_turns(loaders: dict[str, Iterator[int]]) -> dict[str, list[float]]:
    """Return the rate of each loader in each round, in Mtokens per second of CPU; a first round is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(ROUNDS + 1):
        for name, loader in loaders.items():
            tokens, begin = 0, time.process_time()
            while tokens < BATCHES * TOKENS_PER_BATCH:
                tokens += next(loader)
            if number:
                rates[name].append(tokens / (time.process_time() - begin) / 1e6)
    return rates


PARTS = {"speed": speed, "shuffle": shuffle}

if __name__ == "__main__":
    sys.exit(main())
