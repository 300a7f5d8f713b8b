"""Scripts that still hold an iterator end at once and print nothing."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import interpreters
from tests.helpers.text_samples import make_texts, write_texts

# The interpreter of each case ends as that of a script does; all are forked from one that has imported what they need.
SCRIPT = """
import itertools, os, sys, time, pipeline, pipeline.stream.datasets.open_dataset, pipeline.text.readers.parquet, pyarrow.parquet
for file, ahead in itertools.product(sys.argv[1:], (0, 3)):
    if os.fork() == 0:
        break
    if code := os.waitstatus_to_exitcode(os.wait()[1]):
        sys.exit(f"{file}, {ahead}: {code}")
else:
    sys.exit()
stream = pipeline.TextDataset(file, "bytes").shuffle(seed=0, lanes=2).pack(16).batch(2)
stream = stream.map(lambda batch: time.sleep(0.02) or batch).prefetch(ahead)
held = iter(stream)
next(held), next(held)
"""


def test_a_script_that_still_holds_an_iterator_ends_in_silence(tmp_path: Path) -> None:
    files = [str(write_texts(tmp_path / f"a.{kind}", make_texts(300))) for kind in ("jsonl", "parquet", "tar")]
    ended = interpreters.run("-c", SCRIPT, *files)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
