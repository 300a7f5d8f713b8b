"""Texts -> token ids.

tokenizer.py            load, train, encode
tokenizer_files.py      files, directories and hub names -> the text of tokenizer.json and its special tokens
sentencepiece_model.py  a model of SentencePiece -> the text of tokenizer.json
tiktoken_encoding.py    an encoding of tiktoken -> the text of tokenizer.json
encoders.py             the encoder that defines the ids, and a fast one if it returns the same ids
lost_characters.py      counts the characters that a vocabulary lacks
conformance.py          texts on which the fast encoder must agree with the definition
"""
