"""The shard format and the dataset directory: the one room that building and streaming share."""
