"""Compare a build's reader of web archives with the extractors alone, and with datatrove's reader and extractor.

    python scripts/bench_pages.py '/data/pages/**/*.html' [--pages 600]

Files of HTML of at least 4 kB are written to one .warc.gz, each as a member. Rates are pages per second of wall time. In each
round, three readers take turns: an extractor alone on bytes in memory, the reader of a build on the archive, and datatrove,
which extracts in another process, if it is installed with its extras.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.text.document import Document
from pipeline.text.extract import EXTRACTORS, RESILIPARSE, TRAFILATURA
from pipeline.text.readers.document_reader import DocumentReader
from scripts.bench.report import median, ratio, table


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("html", help="glob of files of HTML")
    parser.add_argument("--pages", type=int, default=600, help="pages to draw from them (default: 600)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which readers take turns (default: 5)")
    options = parser.parse_args(argv)
    files = sorted(file for file in glob.glob(options.html, recursive=True) if Path(file).stat().st_size >= 4096)
    if not files:
        parser.error(f"{options.html}: no file")
    random.Random(0).shuffle(files)
    pages = [Path(file).read_bytes() for file in files[: options.pages]]
    with tempfile.TemporaryDirectory() as folder:
        archive = write_archive(Path(folder) / "pages.warc.gz", pages)
        readers: dict[str, Callable[[], int]] = {}
        for name in EXTRACTORS:
            readers[f"{name} alone"] = lambda name=name: alone(name, pages)  # type: ignore[misc]
            readers[f"a build's reader, {name}"] = lambda name=name: ours(archive, name)  # type: ignore[misc]
        try:
            datatrove(archive)
            readers["datatrove, trafilatura"] = lambda: datatrove(archive)
        except ImportError as error:
            print(f"without datatrove: {error}")
        rates: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(options.rounds):
            for name, read in readers.items():
                begin = time.perf_counter()
                read()
                rates[name].append(len(pages) / (time.perf_counter() - begin))
    rows = [
        (name, median(rate, 0), ratio(rate, rates[f"{RESILIPARSE if RESILIPARSE in name else TRAFILATURA} alone"]))
        for name, rate in rates.items()
    ]
    size = sum(map(len, pages)) / 1e6
    table(f"{len(pages):,} pages, {size:,.1f} MB of HTML", ("reader", "pages/s", "of the extractor alone"), rows)
    return 0


def write_archive(path: Path, pages: Sequence[bytes]) -> Path:
    """Write pages as a crawler does, each as a gzip member."""
    from fastwarc.warc import WarcRecord, WarcRecordType

    with open(path, "wb") as file:
        for number, page in enumerate(pages):
            record = WarcRecord()
            record.init_headers(WarcRecordType.response)
            record.headers["WARC-Target-URI"] = f"https://example.org/{number}"
            record.set_bytes_content(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page)
            record.is_http = True
            member = io.BytesIO()
            record.write(member)
            file.write(gzip.compress(member.getvalue()))
    return path


def alone(name: str, pages: Sequence[bytes]) -> int:
    """Decode pages and extract their text with the functions of the library, without limits."""
    import trafilatura
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    options: dict[str, Any] = {"favor_precision": True, "include_comments": False}
    texts = (bytes_to_str(page, detect_encoding(page, from_html_meta=True) or "utf-8") for page in pages)
    if name == RESILIPARSE:
        return sum(bool(extract_plain_text(text, main_content=True)) for text in texts)
    return sum(bool(trafilatura.extract(text, **options)) for text in texts)


def ours(archive: Path, extract: str) -> int:
    return sum(isinstance(record, Document) for record in DocumentReader(archive, extract=extract))


def datatrove(archive: Path) -> int:
    from datatrove.pipeline.extractors import Trafilatura  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from datatrove.pipeline.readers import WarcReader  # type: ignore[import-not-found, import-untyped, unused-ignore]

    documents = WarcReader(str(archive.parent), glob_pattern=archive.name).run()
    return sum(bool(document.text) for document in Trafilatura(favour_precision=True).run(documents))


if __name__ == "__main__":
    raise SystemExit(main())
