"""The sources of streams, with their counts and fingerprints.

sources.py       the protocol of a source; one source, or those of a mix by their names
selection.py     which extents and documents of a dataset are streamed
counted_data.py  the base class of sources with counts known in advance
shard_data.py    shards of a dataset, or arrays in memory
upsampling.py    shards of which some documents are read several times an epoch, or never
text_data.py     raw text: files, or a live source
live_source.py   streaming datasets and functions, read again from any position
holdout.py       which extents or documents a split holds out, or a subset has
"""
