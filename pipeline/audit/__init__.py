"""Answers questions about finished datasets.

find.py             whether a dataset has a text: as a document, or as a passage of one
signature_index.py  documents that may be alike, by datasketch's `MinHashLSH` over the signatures that a dataset keeps
diff.py             which documents two datasets share, which only one has, and which rules of the other drop these
documents.py        the documents of a dataset by number: where each is, its text and its origin
passage.py          the words that two texts share

Nothing here imports torch or stream/.
"""
