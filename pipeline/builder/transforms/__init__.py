"""Transforms: the ordered list of what documents pass between reading and dedup.

transform.py       what a transform is (documents -> keep, edit, several or drop, for each), and the built-in ones
score_table.py     scores that were made elsewhere, joined to documents by the hash of their texts
user.py            a transform of the user: called, checked and counted
user_functions.py  how a recipe names one, and how a plan keeps it
chain.py           the transforms in order, applied to a batch of documents: a new built-in one is a class and a line here
"""
