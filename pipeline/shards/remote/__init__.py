"""Objects behind urls.

access.py       the settings, and how urls are shown
transport.py    bytes with retries: http(s) over kept connections, all else through fsspec
s3.py           signed urls of S3 objects
http.py         GET requests: kept connections, redirects, authorization
http_range.py   ranges of objects on http servers, held to what was asked for
pace.py         how fast a server answers, and how long it asks to wait
objects.py      ranges of objects that are pinned to a version
requests.py     the threads that have requests in flight
block_cache.py  a bounded directory of blocks, shared by processes
cache.py        a bounded directory of downloaded objects, shared by processes
store.py        remote shards as local files: leases on the cache, read-ahead
"""
