"""Objects behind urls.

transport.py  bytes with retries: http(s) by the standard library, all else through fsspec
cache.py      a bounded directory of downloaded objects, shared by processes
store.py      remote shards as local files: leases on the cache, read-ahead
"""
