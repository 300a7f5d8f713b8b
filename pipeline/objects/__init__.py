"""Remote objects by their urls, for shards and texts alike: what they hold, in whole or by ranges, with retries, and a cache.

urls.py             which urls there are, and how they are shown without secrets
request_options.py  the settings, and temporary failures
retries.py          tries, and the waits between them
http.py             GET requests: kept connections, proxies, redirects, waits that servers ask for
range_answers.py    answers of http servers, compared with what was asked for
store_clients.py    object stores: clients of fsspec, and signed urls
locations.py        where paths and urls lead: nothing is read from what is written
uploads.py          what is written to object stores
remote_object.py    an object: size, version, ranges, downloads; listings
request_threads.py  the threads that have requests in flight
cache.py            a bounded directory of blocks and whole objects, shared by processes
"""
