"""The stages of a build. Each calls a function for each partition, and writes files that appear by rename.

stage.py             what a stage is: steps, and the path of each unit; the runner, which skips paths that exist
section.py           what the report shows of a stage
registry.py          the stages, in the order of the files below: a new stage is a module and a line there
ingest.py            units of input -> partitions of documents that pass
quotas.py            which units and partitions fill the token quotas of sources; whether another round is needed
bad_records.py       how many bad records a build allows
decontaminate.py     drop, cut or mark documents that hold items of evaluation sets
line_dedup.py        cut lines and paragraphs that occur earlier in the corpus
dedup.py             find exact and near duplicates over the whole input
survivors.py         documents that no stage has dropped so far; how a stage drops some
drop_ids.py          drop documents whose ids are listed, as after opt-outs
passage_dedup.py     cut runs of words that occur earlier in the corpus
tokenize.py          train the tokenizer, if asked; encode the documents that are kept
split.py             assign training and validation; apply the token quotas of sources
leaks.py             count what of the validation documents is in training documents
write.py             token counts -> layout of shards -> one shard a unit, its texts beside it if asked
"""
