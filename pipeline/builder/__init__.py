"""Raw text -> shards. `pipeline.build` runs a build: the plan, then one stage after the other, then the manifest.

build.py             runs the stages in order: start here
recipe.py            every setting that decides a byte of the result
setting.py           what a setting is: its flag, type, check and help
limits.py            sizes of units and buffers, which change no byte
inputs.py            input files: listed, named, described so that a change is noticed
plan.py              inputs and recipe -> units of work
build_tokenizer.py   the tokenizer of a build, named or trained
stages/              one file for each stage; `registry` lists them in order
transforms/          the steps that each document passes in order: normalize, clean, language, rules
partitions/          the documents of a unit, which stages exchange
output_directory.py  whether a build is new, continued or complete; what differs between two plans
signature_store.py   writes the signatures of a build, and fetches those of earlier builds
dry_run.py           the plan, and the outcomes of a sample, with nothing written
work/                the work directory: its layout, its lock, results that appear only when whole
dedup/               the algorithms of deduplication: MinHash, LSH, union-find, n-grams of evaluation sets
engines/             run units in this process, in worker processes, or on Ray
counts/              what a build counts
report/              shows the counts: terminal, report.html, rejected.jsonl
outcome.py           why a document is in the dataset or not
build_manifest.py    the end of a build: counts that add up, manifest.json, and the files beside the shards
"""
