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
_COMPRESSED_TIMES = 3  # compressed text is counted as so many times its size


@dataclass(frozen=True, slots=True)
class Format:
    """One format of input files.

    ``module``, a file of ``readers/``, defines its ``READER`` (`FormatReader`). ``suffixes`` are those of file names;
    a ``compressible`` format is also read with one of ``COMPRESSIONS`` behind its suffix. ``compresses`` says that the format
    compresses its text itself, ``span_unit`` what the numbers of a span of such a file count. ``record`` is what errors call
    a record. ``separator`` is what stands between the documents of a text file that holds many; ``one_document`` says that a file
    is one document. ``delimiter``, ``quote`` and ``escape`` are those of rows of fields; no ``quote``: fields are not quoted,
    and a field that seems to be is a bad record, unless ``quote`` is `NO_QUOTE`.
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


# To add a format: one line here, one file in readers/, and its name in the map of readers/. A test asks for a file of each
# suffix in tests/format_samples.py and for the suffix in the list of formats of docs/build.md.
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
SEPARATOR = "separator="  # begins the name of a format, before what stands between documents
# What a user may call the format of files whose names do not tell it.
FORMAT_NAMES = {("text" if format.module == "plain" else format.suffixes[0][1:]): format for format in FORMATS} | {
    "lines": Format("delimited", (), record="text", separator=LINE_END),
    "paragraphs": Format("delimited", (), record="text", separator=BLANK_LINE),
}
NO_QUOTE = "none"
_DIALECT = re.compile(r",(delimiter|quote|escape)=(none|\\t|.)(?=,|$)", re.DOTALL)
FORMAT_HELP = (
    "take files of any ending as this: jsonl, csv, tsv, ...; 'csv,delimiter=;,quote=none,escape=\\': with these characters "
    "(default: commas and double quotes; of tsv, tabs and no quotes); text: each file is one document; lines, paragraphs or "
    "separator=STR: each line of a text file is one, each block between blank lines, or what stands between separators, such "
    "as separator='<|endoftext|>' (\\n in STR is a line feed)"
)
ENDINGS = tuple(_BY_ENDING)
"""Every ending of a name that can be read, in lower case: ``.jsonl``, ``.jsonl.gz``, ..."""
READABLE = (
    f"{' '.join(suffix for format in FORMATS for suffix in format.suffixes)}, each but "
    f"{' and '.join(suffix for format in FORMATS if not format.compressible for suffix in format.suffixes)} also with "
    f"{' '.join(COMPRESSIONS)}"
)
"""What errors say of them."""


def find_format(name: str) -> Format | None:
    """Return the format that the ending of a file's name stands for, in any case of letters, or None."""
    lowered = name.lower()
    return next((format for ending, format in _BY_ENDING.items() if lowered.endswith(ending)), None)


def format_named(name: object) -> Format:
    """Return the format that a user names. Raises ``ConfigError`` for an unknown name.

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
                f"format {name!r}: the separator is missing; write what stands between documents, as in "
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
        form = replace(form, escape="")  # quotes that are written twice are read in any case
    characters = [each for each in (form.delimiter, form.quote, form.escape) if each not in ("", NO_QUOTE)]
    if len(set(characters)) < len(characters) or {"\r", "\n"}.intersection(characters):
        raise ConfigError(
            f"format {name!r}: delimiter, quote and escape must be different characters, and no line ends"
        )
    return form


def format_of(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file by the ending of its name, or as it is said to be (``InputFile.forced_format``).

    Raises ``InputError`` for an unknown ending.

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
    """Whether a file takes fewer bytes than its text, going by its name alone.

    >>> is_named_compressed("a.jsonl.zst"), is_named_compressed("a.parquet"), is_named_compressed("a.csv")
    (True, True, False)
    """
    return os.fspath(path).lower().endswith(PACKED) or format_of(path).compresses


def text_times(path: str | os.PathLike[str]) -> int:
    """Return about how many times its own size the text of a file takes, going by its name.

    >>> text_times("a.jsonl.zst"), text_times("a.jsonl")
    (3, 1)
    """
    return _COMPRESSED_TIMES if is_named_compressed(path) else 1
