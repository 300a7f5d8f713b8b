"""The algorithms of deduplication, without the stage that runs them (`pipeline.builder.stages.dedup`).

minhash.py          texts -> exact hashes and MinHash signatures
bands.py            signatures -> keys, sorted on disk bucket by bucket
lsh.py              keys -> candidate pairs -> verified edges -> clusters -> which document of each is kept
segments.py         lines and paragraphs, for deduplication below the document
decontaminate.py    documents that share long n-grams with evaluation sets
row_files.py        rows in many files as one array that is never in memory as a whole
kernels.py          the compiled loops
"""
