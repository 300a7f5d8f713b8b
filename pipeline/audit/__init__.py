"""Answers about finished datasets: what is in them.

find.py             whether a dataset has a text: as a document, or as a passage of one
signature_index.py  documents that may be alike, by datasketch's `MinHashLSH` over the signatures that a dataset keeps
diff.py             what two datasets share, what only one has, and which rules of the other drop that
documents.py        the documents of a dataset by number: where each is, its text and its origin
passage.py          the words that two texts share

Never torch, never stream/.
"""
