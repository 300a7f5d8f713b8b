"""Tokens in and out: from where others keep them to a dataset, and from a dataset to what other tools read.

token_writer.py    documents of ids -> a dataset: `write_shards`
token_sources.py   Parquet, Arrow, JSON, Megatron and flat arrays -> documents of ids: `import_tokens`
megatron.py        the layout of Megatron's ``.bin`` and ``.idx``
"""
