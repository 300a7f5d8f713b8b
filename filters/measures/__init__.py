"""The measures: plain functions from a document to a number, one idea per file.

length.py        the length of the document
words.py         whether its words are those of prose (Gopher)
lines.py         the form of its lines (Gopher, FineWeb)
repetition.py    how much of it repeats itself (Gopher)
sentences.py     sentences, and phrases that reveal pages without prose (C4)
code.py          how much of it is source code or markup
source_files.py  source files: lengths of lines, letters, marks of generated code
model_scores.py  scores of models: the identifier of languages, classifiers of the user
columns.py       fields of the record, for rules on columns
url_lists.py     whether its url is on lists of domains and words
profanity.py     how many of its words are on a list (profanity.txt)
"""
