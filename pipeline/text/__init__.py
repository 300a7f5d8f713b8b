"""Raw text -> documents -> token ids, for the build and for streaming text alike.

discovery.py  what the user named -> input files, in a fixed order
storage/      where files are: this machine, web servers, object stores, the hub
formats.py    the formats: one line each
readers/      input files -> records, one format a file
extract.py    HTML -> text
code_languages.py  the ending of a file name -> a programming language
document.py   a record -> a `Document`, or a `BadRecord` that says why not
fields.py     the other fields of a record that a document keeps, with their types
where.py      conditions on fields, by which records are selected
judging.py    which texts are kept, by language and rules
normalize.py  one spelling for equal texts
hashes.py     the hash that identifies a text
tokens/       texts -> token ids
token_ids.py  token ids from other tools -> checked ids of a vocabulary
"""
