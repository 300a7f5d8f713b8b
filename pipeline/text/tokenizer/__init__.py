"""Tokenizers.

tokenizer.py    load, train, encode
loading.py      files, directories and hub names -> the text of tokenizer.json and its special ids
encoders.py     encoders that give the same ids as the definition, the fastest first
choice.py       which of them is used, found at once or in a thread
conformance.py  texts on which an encoder must agree with the definition
"""
