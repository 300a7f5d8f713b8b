"""Tokens in and out: files of other tools -> a dataset, and a dataset -> files of other tools.

new_directory.py   a directory that appears when it is complete
token_writer.py    documents of ids -> a dataset: `write_shards`
token_sources.py   Parquet, Arrow, JSON, Megatron and flat arrays -> documents of ids: `import_tokens`
megatron.py        the layout of Megatron's ``.bin`` and ``.idx``
export.py          a dataset -> Megatron, nanoGPT or Parquet: `export_tokens`
"""
