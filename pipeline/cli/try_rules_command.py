"""``shardwright try-rules``: the documents of a sample that rules would drop, and histograms of measures."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from filters.language.identifier import UNDETERMINED, LanguageIdentifier, parse_languages
from filters.rules.named_files import NamedFile
from filters.rules.rule import Rule, Violation, limits_text
from filters.rules.rule_files import user_module
from filters.rules.ruleset import RuleSet, load_rules
from pipeline.builder.counts.sums import PASSED, Counts
from pipeline.builder.recipe import Recipe
from pipeline.builder.transforms.chain import Chain
from pipeline.builder.transforms.references import References
from pipeline.errors import ConfigError
from pipeline.objects.request_options import RequestOptions
from pipeline.text.discovery import evenly
from pipeline.text.fields import parse_fields
from pipeline.text.judging import EMPTY
from pipeline.text.judging import measure as measured
from pipeline.text.readers.document_reader import Document, InputFile, find_inputs

from .command import Command
from .texts_options import CountingReader, measure_names, rule_list

DESCRIPTION = """\
Try rules on a sample of documents: show how many each would drop, with examples, and the histogram of a measure.

  %(prog)s raw/*.jsonl --rules gopher,fineweb --examples 3
  %(prog)s raw/*.jsonl --rules mine.toml --measure words --set words.min=20 --set words.min=50

The sample is the first records of every input file, the same number from each. Every document is measured once. Each
--set judges the same values with other limits, separated by commas: words.min=20,words.max=9000. Nothing is written."""

EPILOG = "exit status: 0 shown; 1 no document was read; 2 an error, or wrong usage; 130 interrupted"

SETTINGS = tuple("rules where language language_threshold lid_model format text_key id_key extract normalize".split())
BARS = 24
BAR_WIDTH = 48
EXCERPT = 76
BATCH = 512  # documents measured together
_LABEL = re.compile(r"\s*(?P<id>\S.*?)[\s,]+(?P<label>keep|drop)\s*")
MOST_FILES = 64  # most files that are opened


@dataclass(frozen=True, slots=True)
class Trial:
    """One document after the cleaners, with its measures; ``values`` is None if its text is empty."""

    document: Document
    values: dict[str, float] | None

    def judge(self, rules: RuleSet) -> Violation | None:
        """Return why a build drops the document, or None if it keeps it."""
        return _EMPTIED if self.values is None else rules.judge(self.values)

    def fails(self, rule: Rule) -> bool:
        """Return whether the document fails one rule, which may judge documents in other languages alone."""
        value = (self.values or {}).get(rule.name)
        return value is not None and rule.judge(value) is not None


_EMPTIED = Violation("", EMPTY.rule, 0, 1, "min", EMPTY.reason)

FLAGS = """\
INPUT...          files, directories, globs or brace patterns
--list-rules      show the rule sets and all measures, and exit
--limit N         documents to read
--examples N      documents shown for each rule
--show            show examples of the documents that each rule drops, or of kept ones
--labels FILE     a line for each document that you have judged: its id, a tab, comma or space, and keep or drop. Show the
                  precision and recall of each rule on these documents
--measure NAME    show the histogram of this measure, even if no rule uses it
--set RULE.min=N  judge the same values with this limit instead of the rule's; each --set is judged separately"""


def run(
    inputs: list[str],
    *,
    list_rules: Annotated[None, rule_list] = None,
    limit: Annotated[int, 1] = 2000,
    examples: Annotated[int, 0] = 1,
    show: Literal["dropped", "kept"] = "dropped",
    labels: str | None = None,
    measure: str | None = None,
    set: list[str] | None = None,
    settings: dict[str, Any],
    requests: RequestOptions,
) -> int:
    recipe = Recipe.from_json(settings | {"transforms": ("normalize", "clean", "language")})
    rules = load_rules(recipe.rules)
    variants = {setting: load_rules([*recipe.rules, setting]) for setting in set or ()} or {"": rules}
    tried_rules = rules
    if measure and measure not in rules.measures:
        module = user_module(measure, "", "measure of --measure")
        tried_rule = Rule(measure, measure, "--measure", module=module)
        tried_rules = RuleSet([*rules.rules, tried_rule], rules.cleaners)
    labelled = read_labels(labels) if labels else None
    reader = CountingReader()
    files = find_inputs(inputs, requests=requests, format=recipe.format)
    samples = list(_measure(tried_rules, recipe, files, limit, reader, labelled))
    if not samples:
        print("no document was read" + (f" in {settings['language']}" if recipe.language else ""), file=sys.stderr)
        reader.print()
        return 1
    reader.print()
    for setting, tried in variants.items():
        violations = [sample.judge(tried) for sample in samples]
        if len(variants) > 1:
            print(f"--set {setting}\n")
        if labelled is None:
            _print_table(tried, samples, violations, reader.read)
        else:
            _print_agreement(tried, samples, violations, labelled)
        if show == "kept":
            kept = [sample for sample, violation in zip(samples, violations, strict=True) if violation is None]
            _print_examples("kept", [(sample, "kept") for sample in kept[:examples]])
        else:
            for rule in tried.rules:
                dropped = [(s, v.reason) for s, v in zip(samples, violations, strict=True) if v and v.rule == rule.name]
                _print_examples(rule.name, dropped[:examples])
        if setting:
            without, with_it = (sum(sample.judge(each) is None for sample in samples) for each in (rules, tried))
            print(f"\nkept without --set: {without:,}; with {setting}: {with_it:,} ({with_it - without:+,})")
        if len(variants) > 1:
            print()
    if measure:
        shown = rules if len(variants) > 1 else next(iter(variants.values()))
        limits = next((rule for rule in shown.rules if rule.name == measure), None)
        print()
        values = [sample.values[measure] for sample in samples if sample.values is not None]
        print(histogram(measure, values, limits))
    return 0


def read_labels(path: str) -> dict[str, str]:
    """Return "keep" or "drop" by the id of each document; ``ConfigError`` names a line that has neither."""
    labels: dict[str, str] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--labels {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _LABEL.fullmatch(line)
        if match is None:
            raise ConfigError(
                f"--labels {path}, line {number}: {excerpt(line)!r} does not end in keep or drop; write the id of a document, a "
                "tab, and keep or drop"
            )
        if labels.setdefault(match["id"], match["label"]) != match["label"]:
            raise ConfigError(f"--labels {path}, line {number}: {match['id']!r} has both labels; leave one")
    if "drop" not in labels.values():
        raise ConfigError(f"--labels {path}: no document is labelled drop, so nothing says which drops are right")
    return labels


def _measure(
    rules: RuleSet,
    recipe: Recipe,
    files: Sequence[InputFile],
    limit: int,
    reader: CountingReader,
    labels: Mapping[str, str] | None,
) -> Iterator[Trial]:
    """Yield a trial of each document that reaches the rules in a build, or whose text is empty by then."""
    identifier = LanguageIdentifier(recipe.lid_model)
    identifier.check_known(parse_languages(recipe.language))
    build = Chain(recipe, References(rules, NamedFile.read(identifier.path), {}))
    keep = parse_fields(rules.fields)
    if labels is None:
        read = [reader.documents(file, recipe, keep, files=files) for file in evenly(files, MOST_FILES)]
        documents: Iterator[Document] = chain.from_iterable(_spread(read, limit))
    else:
        every = chain.from_iterable(reader.documents(file, recipe, keep, files=files) for file in files)
        documents = (document for document in every if document.id in labels)
    while batch := list(islice(documents, BATCH)):
        processed = build.process(batch, Counts())
        yield from (Trial(result.document, None) for result in processed if result.outcome == EMPTY.rule)
        kept = [result.document for result in processed if result.outcome == PASSED]
        yield from map(Trial, kept, rules.named(measured(rules, kept)))


def _spread(files: Sequence[Iterator[Document]], limit: int) -> Iterator[list[Document]]:
    """Yield the first documents of each file, ``limit`` in total: equally many of each if no file runs out."""
    count = 0
    for number, file in enumerate(files):
        yield (documents := list(islice(file, math.ceil((limit - count) / (len(files) - number)))))
        count += len(documents)


def _print_table(rules: RuleSet, samples: Sequence[Trial], violations: Sequence[Violation | None], read: int) -> None:
    """Print for each rule how many documents it drops and how many fail it. ``read`` counts unjudged documents too."""
    first = Counter(violation.rule for violation in violations if violation is not None)
    kept = sum(violation is None for violation in violations)
    emptied = sum(sample.values is None for sample in samples)
    rows = [(EMPTY.rule, "before rules", emptied, emptied)] if emptied else []
    for rule in rules.rules:
        failing = sum(sample.fails(rule) for sample in samples)
        rows.append((rule.name, limits_text(rule.min, rule.max), first[rule.name], failing))
    width = max([len(name) for name, *_ in rows], default=4)
    print(f"judged {len(samples):,} of {read:,} documents read: {kept:,} kept ({kept / len(samples):.1%}), ", end="")
    print(f"{len(samples) - kept:,} dropped\n")
    print(f"{'rule':{width}}  {'limits':>16}  {'drops':>7}  {'':>6}  {'fails':>7}")
    for name, limits, drops, fails in rows:
        print(f"{name:{width}}  {limits:>16}  {drops:>7,}  {drops / len(samples):>6.1%}  {fails:>7,}")
    print("\n(drops: documents that fail this rule before any other; fails: all documents that fail this rule)")


def _print_agreement(
    rules: RuleSet, samples: Sequence[Trial], violations: Sequence[Violation | None], labels: Mapping[str, str]
) -> None:
    """Print the precision and recall of each rule alone, and of all together, on the documents that a person has judged."""
    unwanted = np.array([labels[sample.document.id] == "drop" for sample in samples])
    dropped = {"all rules": [violation is not None for violation in violations]}
    dropped |= {rule.name: [sample.fails(rule) for sample in samples] for rule in rules.rules}
    print(f"{len(samples):,} of {len(labels):,} labelled documents reach the rules: ", end="")
    print(f"{unwanted.sum():,} to drop, {(~unwanted).sum():,} to keep\n")
    width = max(map(len, dropped))
    print(f"{'rule':{width}}  {'drops':>7}  {'wrongly':>7}  {'precision':>9}  {'recall':>7}")
    for name, drops in dropped.items():
        found, right = sum(drops), int(unwanted[np.array(drops)].sum())
        precision = f"{right / found:.1%}" if found else "-"
        recall = f"{right / unwanted.sum():.1%}" if unwanted.any() else "-"
        print(f"{name:{width}}  {found:>7,}  {found - right:>7,}  {precision:>9}  {recall:>7}")
    print(
        "\n(each rule alone; precision: the share of its drops that you would drop; recall: the share of these that it drops)"
    )


def _print_examples(title: str, examples: Sequence[tuple[Trial, str]]) -> None:
    """Print a title, and for each document a remark and the beginning of its text. Without documents, print nothing."""
    for number, (sample, remark) in enumerate(examples):
        if number == 0:
            print(f"\n{title}")
        document = sample.document
        code = document.language.code if document.language else UNDETERMINED
        print(f"  {remark}   [{code}] {document.id} {document.file}:{document.line}")
        print(f"    {excerpt(document.text)}")


def excerpt(text: str) -> str:
    """Return the beginning of a text on one line. Unprintable characters are escaped: some control the terminal.

    >>> excerpt("two\\nlines\\x1b[31m")
    'two lines\\\\x1b[31m'
    """
    line = " ".join(text[: EXCERPT * 4].split())
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    return visible if len(visible) <= EXCERPT else visible[: EXCERPT - 1] + "…"


def histogram(name: str, values: Sequence[float], rule: Rule | None = None) -> str:
    """Return a histogram of ``values``, with the limits of ``rule`` at their bars and quantiles below.

    Bars have equal widths from the smallest to the largest value. If a few values are much larger, they end at the 99th
    percentile, and the last bar holds the rest.
    """
    ordered = sorted(value for value in values if not math.isnan(value))
    if not ordered:
        return f"{name}: no values"

    def quantile(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    low, high = ordered[0], ordered[-1]
    inside = [limit for limit in (rule.min, rule.max) if math.isfinite(limit)] if rule else []
    near = max([quantile(0.99), *(limit for limit in inside if limit <= high)])
    if high > low + 2 * (near - low):
        high = near
    step = (high - low) / BARS or 1.0
    counts = Counter(min(int((value - low) / step), BARS - 1) for value in ordered)
    tallest = max(counts.values())
    lines = [
        f"{name} of {len(ordered):,} documents"
        + (f", kept: {limits_text(rule.min, rule.max)}" if inside and rule else "")
    ]
    for bar in range(BARS if ordered[-1] > low else 1):
        start, end = low + bar * step, low + (bar + 1) * step
        last = bar == BARS - 1
        marks = [
            f" <- {kind} {limit:.6g}"
            for kind, limit in (("min", rule.min), ("max", rule.max))
            if start <= limit < end or (last and limit == end)
        ] if rule else []  # fmt: skip
        count = counts[bar]
        length = math.ceil(BAR_WIDTH * count / tallest)
        more = "+" if last and ordered[-1] > high else " "
        lines.append(f"{start:>10.4g}{more} {count:>7,} {'█' * length}{''.join(marks)}")
    shares = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
    lines.append("  ".join(f"p{share * 100:g} {quantile(share):.4g}" for share in shares))
    return "\n".join(lines)


COMMAND = Command(
    run=run,
    flags=FLAGS,
    brief="INPUT...",
    description=DESCRIPTION,
    epilog=f"{measure_names()}\n\n{EPILOG}",
    settings=SETTINGS,
    error_status=2,
)
