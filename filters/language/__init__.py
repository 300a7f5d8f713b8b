"""The language and the script of a document.

language.py          language identification with a fastText model, lid.176 by default
scripts.py           the script of a text, for languages that are written in several
model_file.py        checks that a file is a complete fastText model
fasttext.py          a compressed fastText model as arrays, and the compiled prediction
fasttext_kernels.py  its compiled loops
fasttext_score.py    the probability of one label by any supervised fastText model
fasttext_hidden.py   its compiled loop
"""
