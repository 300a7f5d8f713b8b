"""The formats of input files: one line each. The module that reads a format is loaded when a file needs it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from ..errors import ConfigError, InputError, did_you_mean

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
PACKED = (*COMPRESSIONS, ".tgz")  # endings of compressed files
_COMPRESSED_TIMES = 3  # the estimate of unpacked size / compressed size


@dataclass(frozen=True, slots=True)
class Format:
    """One format of input files.

    ``module``, a file of ``readers/``, defines its ``READER`` (`FormatReader`). ``suffixes`` are the endings of file names; a
    ``compressible`` format may have one of ``COMPRESSIONS`` after its suffix. ``compresses`` says that the format compresses
    its text itself. ``span_unit`` is the unit in which spans of a file are counted. ``record`` is the word for a record in
    errors. ``separator`` separates the documents of a text file; ``one_document`` says that a file is one document.
    ``delimiter``, ``quote`` and ``escape`` belong to rows of fields. If ``quote`` is '', a field that looks quoted is a bad
    record; if it is `NO_QUOTE`, its quotes are text.
    """

    module: str
    suffixes: tuple[str, ...]
    compressible: bool = True
    compresses: bool = False
    span_unit: str = "byte"
    record: str = "JSON object"
    separator: str = ""
    one_document: bool = False
    delimiter: str = ""
    quote: str = ""
    escape: str = ""


# To add a format: one line here and, unless a reader there fits, a file in readers/, named in its docstring. Tests require
# a file of each suffix in tests/helpers/format_samples.py, and the suffix in the list of formats of docs/build.md.
FORMATS = (
    Format("jsonl", (".jsonl", ".ndjson")),
    Format("json_array", (".json",)),
    Format("csv", (".csv",), record="row", delimiter=",", quote='"'),
    Format("csv", (".tsv",), record="row", delimiter="\t"),
    Format("plain", (".txt",), record="text", one_document=True),
    Format("parquet", (".parquet",), compressible=False, compresses=True, span_unit="row group", record="row"),
    Format("arrow", (".arrow",), compressible=False, record="row"),
    Format("tar", (".tar", ".tgz")),
    Format("warc", (".warc", ".wet"), record="record"),
)
_BY_ENDING = {suffix: format for format in FORMATS for suffix in format.suffixes} | {
    f"{suffix}{ending}": format
    for format in FORMATS
    if format.compressible
    for suffix in format.suffixes
    for ending in COMPRESSIONS
}
LINE_END, BLANK_LINE = "\n", "\n\n"
SEPARATOR = "separator="  # the beginning of a format's name; the separator of documents follows
# The names of formats that a user may give if file names do not tell the format.
FORMAT_NAMES = {("text" if format.module == "plain" else format.suffixes[0][1:]): format for format in FORMATS} | {
    "lines": Format("delimited", (), record="text", separator=LINE_END),
    "paragraphs": Format("delimited", (), record="text", separator=BLANK_LINE),
    "webdataset": Format("webdataset", (), record="sample"),
}
NO_QUOTE = "none"
_DIALECT = re.compile(r",(delimiter|quote|escape)=(none|\\t|.)(?=,|$)", re.DOTALL)
FORMAT_HELP = (
    "read files of any ending as this: jsonl, csv, tsv, ...; 'csv,delimiter=;,quote=none,escape=\\': CSV with these characters "
    "(default for csv: commas and double quotes; for tsv: tabs and no quotes); text: each file is one document; lines, "
    "paragraphs or separator=STR: a document is a line of a text file, the lines between blank lines, or the text between "
    "separators, such as separator='<|endoftext|>' (\\n in STR is a line feed); webdataset: tars in which neighbouring members "
    "with one key are a sample, as 7.txt and 7.json"
)
ENDINGS = tuple(_BY_ENDING)
"""Every ending of a name that can be read, in lower case: ``.jsonl``, ``.jsonl.gz``, ..."""
READABLE = (
    f"{' '.join(suffix for format in FORMATS for suffix in format.suffixes)}, each but "
    f"{' and '.join(suffix for format in FORMATS if not format.compressible for suffix in format.suffixes)} also with "
    f"{' '.join(COMPRESSIONS)}"
)
"""The endings, as errors list them."""


def find_format(name: str) -> Format | None:
    """Return the format by the ending of a file's name, in upper or lower case, or None if it is unknown."""
    lowered = name.lower()
    return next((format for ending, format in _BY_ENDING.items() if lowered.endswith(ending)), None)


def format_named(name: object) -> Format:
    """Return the format that a user names. Raises ``ConfigError`` if the name is unknown.

    >>> format_named("lines").separator, format_named("separator=\\\\n---\\\\n").separator
    ('\\n', '\\n---\\n')
    >>> format_named("csv,delimiter=;").delimiter
    ';'
    """
    if isinstance(name, str) and name.startswith(SEPARATOR):
        separator = name.removeprefix(SEPARATOR).replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")
        try:
            separator.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"format {name!r}: the separator cannot be written as UTF-8; give text") from None
        if not separator:
            raise ConfigError(
                f"format {name!r}: the separator is missing; write the text that separates documents, as in "
                "separator=<|endoftext|>"
            )
        return Format("delimited", (), record="text", separator=separator)
    if isinstance(name, str) and name.startswith(("csv,", "tsv,")):
        return _with_dialect(name)
    if not isinstance(name, str) or name not in FORMAT_NAMES:
        near = did_you_mean(name, FORMAT_NAMES, else_known=False)
        raise ConfigError(f"format must be one of {', '.join(FORMAT_NAMES)} or {SEPARATOR}STR, got {name!r}{near}")
    return FORMAT_NAMES[name]


def _with_dialect(name: str) -> Format:
    """Return CSV or TSV with other characters, as in ``csv,delimiter=;,quote=none``."""
    plain, settings = FORMAT_NAMES[name[:3]], name[3:]
    stated: dict[str, Any] = {key: "\t" if value == "\\t" else value for key, value in _DIALECT.findall(settings)}
    if _DIALECT.sub("", settings) or stated.get("delimiter") == NO_QUOTE:
        raise ConfigError(
            f"format {name!r}: write delimiter=, quote= and escape= with one character each (\\t is a tab, quote=none no "
            "quotes), as in 'csv,delimiter=;,quote=none'"
        )
    form = replace(plain, **stated)
    if form.escape in (form.quote, NO_QUOTE):
        form = replace(form, escape="")  # doubled quotes are read without this setting
    characters = [each for each in (form.delimiter, form.quote, form.escape) if each not in ("", NO_QUOTE)]
    if len(set(characters)) < len(characters) or {"\r", "\n"}.intersection(characters):
        raise ConfigError(
            f"format {name!r}: delimiter, quote and escape must be different characters other than line ends"
        )
    return form


def format_of(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file: the one that the user named (``InputFile.forced_format``), else by its ending.

    Raises ``InputError`` if the ending is unknown.

    >>> format_of("a/b.JSONL.gz").module, format_of("c.parquet").module
    ('jsonl', 'parquet')
    """
    if name := getattr(path, "forced_format", ""):
        return format_named(name)
    name = os.path.basename(os.fspath(path))
    format = find_format(name)
    if format is None:
        suffix = PurePath(name.lower()).suffix or "none"
        raise InputError(
            f"{os.fspath(path)}: unknown ending ({suffix}); readable are {READABLE}; --format text reads "
            "plain text of any ending"
        )
    return format


def is_named_compressed(path: str | os.PathLike[str]) -> bool:
    """Whether the name of a file says that it is compressed.

    >>> is_named_compressed("a.jsonl.zst"), is_named_compressed("a.parquet"), is_named_compressed("a.csv")
    (True, True, False)
    """
    return os.fspath(path).lower().endswith(PACKED) or format_of(path).compresses


def text_times(path: str | os.PathLike[str]) -> int:
    """Return how many times as large as the file its text is, estimated from the file's name.

    >>> text_times("a.jsonl.zst"), text_times("a.jsonl")
    (3, 1)
    """
    return _COMPRESSED_TIMES if is_named_compressed(path) else 1
