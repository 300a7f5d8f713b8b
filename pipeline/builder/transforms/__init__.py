"""Transforms: the steps that documents pass in order between reading and dedup.

transform.py       what a transform is (it keeps, edits, splits or drops each document), and the built-in ones
score_table.py     scores that another program made, joined to documents by the hash of their texts
user.py            calls a transform of the user, checks its results and counts
user_functions.py  how a recipe names a transform of the user, and how a plan keeps it
references.py      what a recipe names (rules, models, tokenizers): read once, kept in the work directory, loaded by each process
order.py           the order of the transforms
chain.py           applies the transforms in order to a batch of documents
"""
