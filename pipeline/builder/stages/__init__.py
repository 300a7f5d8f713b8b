"""The stages of a build, in order. Each runs unit functions over partitions and leaves files that appear by rename.

partition.py   the documents that one unit wrote: columns, hashes, origins
filter.py      read, normalise, identify the language, judge by rules, hash
checksums.py   hashes of whole input files that several units read in pieces
line_dedup.py  cut lines and paragraphs that occur earlier in the corpus
dedup.py       find exact and near duplicates over the whole input
tokenize.py    train the tokenizer if asked; encode the documents that are kept
split.py       assign training and validation; apply the token quotas of sources
write.py       token counts -> layout of shards -> one shard a unit
"""
