"""``shardwright card``: a README for the hub, which finds the shards of each split."""

from __future__ import annotations

import json
import re
from fnmatch import filter as matching
from pathlib import Path

import pytest
import yaml

import pipeline
from pipeline.cli.main import main
from pipeline.finished.redaction.redact import redact
from tests.helpers.builds import run_plain, write_jsonl
from tests.helpers.commands import Says
from tests.helpers.corpus import write_inputs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    write_inputs(folder / "in", 60)
    run_plain([f"web={folder / 'in'}"], folder / "set", val_fraction=0.2)
    return folder / "set"


def test_a_card_names_the_shards_of_each_split(built: Path, says: Says) -> None:
    _, front, _ = says(0, "card", built).out.split("---\n", 2)
    head, manifest = yaml.safe_load(front), pipeline.Manifest.read(built)
    [config] = head["configs"]
    names = [path.name for path in built.iterdir()]
    for files in config["data_files"]:
        infos = manifest.splits[files["split"]].shards
        assert sorted(matching(names, files["path"])) == sorted(info.name for info in infos)


CARD = """\
---
license: unknown
task_categories:
- text-generation
size_categories:
- n<1K
configs:
- config_name: default
  data_files:
  - split: train
    path: train-*.tar
---

# set

Token ids of documents, in plain WebDataset tars with an index. Licence: fill in (`license:` above).

| split | documents | tokens |
| --- | ---: | ---: |
| train | 3 | 41 |

Tokenizer: bytes. End of text: id 1. Ids: uint16.

```python
import pipeline  # shardwright

stream = pipeline.ShardDataset("set").pack(2048).batch(8)
```

## Sources

- web: 1 files, 167 bytes, licence MIT
- unnamed: 1 files, 37 bytes, licence unknown

## Taken out after the build

- DAY: 1 documents of 15 tokens (opt-out | of May)

End-of-text ids stand in for redacted documents, which the table of splits counts.

## How it was made

```sh
shardwright build web=INPUT INPUT --output DATASET --keep-fields license --license web=MIT \
--rules none --tokenizer bytes --val-fraction 0.0
```
"""
FILL = "*(to be filled in by the provider)*"
SUMMARY = f"""\
# Public summary of training content: the dataset set

The data parts of the European Commission's template (Article 53(1)(d) of the AI Act, C(2025) 8311). \
Provider, model and all that the dataset cannot know: {FILL}.

## 1.3 Modalities, overall training data size and other characteristics

| modality | size | tokens | documents |
| --- | --- | --- | --- |
| text | Less than 1 billion tokens | 26 | 2 |

Latest date of data acquisition/collection for model training, by the field `date`: {FILL}. Built: DAY.

Linguistic characteristics of the overall training data, by the build's language identification:

| language | documents | tokens | share of tokens |
| --- | --- | --- | --- |
| en | 2 | 26 | 100.00% |

## 2. List of data sources

Whether a source is a publicly available dataset (2.1), a private one of third parties (2.2), crawled (2.3), \
user data (2.4), synthetic (2.5) or another (2.6): {FILL}.

| source | files | bytes read | documents | tokens | licences | dates |
| --- | --- | --- | --- | --- | --- | --- |
| web | 1 | 167 | 1 | 12 | MIT (12 tokens) | unknown |
| unnamed | 1 | 37 | 1 | 14 | unknown (14 tokens) | unknown |

## 2.3 Data crawled and scraped from online sources

Summary of the most relevant domain names:

Not counted: the build kept no field `url` (`--keep-fields url`). {FILL}

## 3. Data processing aspects

## 3.1 Respect of reservation of rights from text and data mining exception or limitation

Measures before the build, such as robots.txt: {FILL}.

Documents that were taken out after the build; the documents and tokens above lack them:

| date | reason | documents | tokens |
| --- | --- | --- | --- |
| DAY | opt-out \\| of May | 1 | 15 |

## 3.2 Removal of illegal content

{FILL}

## 3.3 Other information

What was left out, and why: documents by rule, duplicates by kind, records that could not be read.

| why | documents | measured: kept |
| --- | --- | --- |
| exact duplicate | 1 |  |
"""


def dateless(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d", "DAY", text)


def test_all_that_a_card_and_a_summary_say(tmp_path: Path, says: Says) -> None:
    held = [("Some words.", None), ("More of these.", "CC0-1.0"), ("Some words.", None)]
    rows = [{"id": f"d{k}", "text": text, "license": licence} for k, (text, licence) in enumerate(held)]
    inputs = [
        write_jsonl(tmp_path / "a.jsonl", rows),
        write_jsonl(tmp_path / "b.jsonl", [{"id": "x", "text": "Another text."}]),
    ]
    run_plain([f"web={inputs[0]}", str(inputs[1])], tmp_path / "set", keep_fields="license", license="web=MIT")
    redact(tmp_path / "set", ["d1"], "opt-out | of May")
    for flags, text in (([], CARD), (["--eu-summary"], SUMMARY)):
        assert dateless(says(0, "card", tmp_path / "set", *flags).out) == text
    value, manifest = (
        json.loads(dateless(says(0, "card", tmp_path / "set", "--croissant").out)),
        pipeline.Manifest.read(tmp_path / "set"),
    )
    assert {name: each for name, each in value.items() if name != "@context"} == {
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "set",
        "description": "Token ids of documents, in plain WebDataset tars with an index, for shardwright. "
        "Taken out after the build: DAY: 1 documents of 15 tokens (opt-out | of May).",
        "license": ["MIT", "unknown"],
        "identifier": manifest.fingerprint,
        "distribution": [
            {
                "@type": "cr:FileObject",
                **dict.fromkeys(("@id", "name", "contentUrl"), shard.name),
                "contentSize": f"{shard.bytes} B",
                "encodingFormat": "application/x-tar",
                "sha256": shard.sha256,
            }
            for shard in manifest.shards
        ],
        "datePublished": "DAY",
    }


def test_a_card_is_written_beside_the_shards_with_the_line_that_uploads_them(
    built: Path, tmp_path: Path, says: Says
) -> None:
    file = tmp_path / "README.md"
    assert f"hf upload set {built} --repo-type dataset" in says(0, "card", built, "--output", file).out
    assert file.read_text().startswith("---\nlicense: unknown\n")
    assert main(["card", str(tmp_path)]) == 2
    message = "--output: s3://bucket/README.md is a url; name a file of this machine"
    says(2, "card", built, "--output", "s3://bucket/README.md", shows=message)


def test_the_card_of_the_working_directory_has_its_name(
    built: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    monkeypatch.chdir(built)
    assert "\n# set\n" in says(0, "card", ".").out


def test_a_card_replaces_no_file_of_its_dataset(built: Path, says: Says) -> None:
    before = (built / "manifest.json").read_bytes()
    message = "manifest.json: it is an input, which would be replaced; choose another name"
    says(2, "card", built, "--output", built / "manifest.json", shows=message)
    assert (built / "manifest.json").read_bytes() == before
