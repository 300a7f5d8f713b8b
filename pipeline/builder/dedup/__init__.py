"""The algorithms of deduplication, without the stage that runs them (`pipeline.builder.stages.dedup`).

minhash.py          texts -> MinHash signatures
bands.py            signatures -> keys, sorted on disk bucket by bucket
lsh.py              keys -> candidate pairs -> verified edges -> components; clusters, on disk
kept_texts.py       components -> the texts that stay, and the text that each of the others is dropped for
segments.py         lines and paragraphs, for deduplication of parts of documents
word_runs.py        runs of words that may occur twice, for deduplication of passages
key_tables.py       keys of many partitions, sorted on disk: how often each occurs, and where first
decontaminate.py    documents that share long n-grams with evaluation sets
spellings.py        one spelling for texts that have the same words
row_files.py        the rows of many files as one array, of which memory holds only a part
kernels.py          the compiled loops
"""
