"""The measures: plain functions from a document to a number, one idea per file.

length.py        how long the document is
words.py         whether its words are those of prose (Gopher)
lines.py         what its lines look like (Gopher, FineWeb)
repetition.py    how much of it repeats itself (Gopher)
sentences.py     sentences, and phrases that tell pages which are not prose (C4)
code.py          how much of it is source code or markup
source_files.py  lines of source files, letters, marks of programs that wrote them
model_scores.py  what models say of it: the identifier of languages, classifiers of the user
columns.py       fields of the record, for rules on columns
url_lists.py     whether its url is on lists of domains and words
profanity.py     how much of it is on a list of words (profanity.txt)
"""
