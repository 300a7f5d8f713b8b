"""Remote objects, for shards and texts alike: reads of whole objects and of ranges, with retries and a cache.

urls.py             which urls name remote objects; how urls are shown without secrets
request_options.py  the settings of requests; the failures after which a request is repeated
retries.py          the loop that repeats requests, and its delays
http.py             GET requests: kept connections, proxies, redirects, delays that servers ask for
range_answers.py    checks of what http servers answer to requests for ranges
store_clients.py    object stores: clients of fsspec, and signed urls
locations.py        one form for all spellings of a path or url, so that no build reads from a folder that it writes
uploads.py          writes to object stores
remote_object.py    an object: size, version, ranges, downloads; listings
request_threads.py  the threads that wait for servers
cache.py            a bounded directory of blocks and whole objects, shared by processes
"""
