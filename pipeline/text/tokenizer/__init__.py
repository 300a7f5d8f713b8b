"""Tokenizers.

tokenizer.py    load, train, encode
loading.py      files, directories and hub names -> the text of tokenizer.json and its special ids
encoders.py     encoders that give the same ids as the definition, the fastest first
conformance.py  texts on which an encoder must agree with the definition
"""
