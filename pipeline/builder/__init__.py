"""Raw text -> shards. `pipeline.build` runs a build: plan, then one stage after the other, then the manifest.

build.py             the stages in order: start here
recipe.py            what is asked for: every setting that decides a byte of the result
plan.py              inputs and recipe -> units of work
references.py        what a recipe names (rules, models, tokenizers), resolved once; all processes load it from the work directory
stages/              filter, line_dedup, dedup, tokenize, split, write: one file a stage, and the partitions that they exchange
dedup/               the algorithms of deduplication: MinHash, LSH, Jaccard, union-find, n-grams of evaluation sets
engine/              run units here, in worker processes, or on Ray
report/              what was counted, and how it is shown: terminal, report.html, rejected.jsonl, dry run
draws.py             which documents are drawn for validation, quotas and samples: hashes of (seed, purpose, text)
output_directory.py  a new build, one to resume, or one that is complete
workspace.py         results that appear under their name only when whole
locking.py           one build at a time in a directory
manifest.py          the end of a build: counts that add up, and manifest.json
"""
