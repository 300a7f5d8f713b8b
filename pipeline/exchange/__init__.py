"""Tokens in and out: from where others keep them to a dataset, and from a dataset to what other tools read.

new_directory.py   a directory that gets its name when it is complete
token_writer.py    documents of ids -> a dataset: `write_shards`
token_sources.py   Parquet, Arrow, JSON, Megatron and flat arrays -> documents of ids: `import_tokens`
megatron.py        the layout of Megatron's ``.bin`` and ``.idx``
export.py          a dataset -> Megatron, nanoGPT or Parquet: `export_tokens`
"""
