"""The kinds of data: each offers its counts, a fingerprint, and a way to open it.

base.py           what every kind of data offers
shards.py         shards of a dataset, or arrays in memory
text.py           files of raw text
live_source.py    datasets that stream, and functions, read again from any place
live.py           a live source of raw text, as a dataset that streams
holdout.py        which extents or documents a split holds out
mixture.py        several sources by name
extent_selection.py  the extents of the shards that are streamed
"""
