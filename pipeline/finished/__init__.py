"""Works on finished datasets: answers questions about them, describes them, redacts them. No build runs this code.

find.py              whether a dataset has a text: as a document, or as a passage of one
signature_index.py   documents that may be alike, by datasketch's `MinHashLSH` over the signatures that a dataset keeps
diff.py              which documents two datasets share, which only one has, and which rules of the other drop these
why.py               why a document is in a dataset or not
documents.py         the documents of a dataset by number: where each is, its text and its origin
redaction/           takes documents out of a dataset, in place
near_vectors.py      documents whose vectors are near the vector of an earlier document; a build can drop their ids
vectors.py           reads the user's vectors and keys: .npy, Parquet, JSON Lines
croissant.py         the dataset as Croissant
training_summary.py  the data parts of the AI Act's public summary

Nothing here imports torch or stream/.
"""
