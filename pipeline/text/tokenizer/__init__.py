"""Tokenizers.

tokenizer.py            load, train, encode
load_tokenizer.py       files, directories and hub names -> the text of tokenizer.json and its special ids
sentencepiece_model.py  a model of SentencePiece -> the text of tokenizer.json
encoders.py             the definition, a fast encoder, and which of the two is used
lost_characters.py      counts the characters that a vocabulary lacks
conformance.py          texts on which the fast encoder must agree with the definition
"""
