"""The language and the script of a document.

identifier.py      language identification with a fastText model, lid.176 by default
scripts.py         the script of a text, for languages that are written in several scripts
fasttext_model.py  a fastText model in a file: checked, then read by the library
"""
