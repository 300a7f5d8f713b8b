"""Objects behind urls.

access.py       the settings, and how urls are shown
transport.py    bytes with retries: http(s) over kept connections, all else through fsspec
http.py         one answer of an http server: its range, pace and limits
objects.py      ranges of objects that are pinned to a version
requests.py     the requests in flight, the most urgent first
block_cache.py  a bounded directory of blocks, shared by processes
cache.py        a bounded directory of downloaded objects, shared by processes
store.py        remote shards as local files: leases on the cache, read-ahead
"""
