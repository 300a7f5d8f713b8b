"""Redacts documents of a finished dataset in place: their tokens become end-of-text ids, and no other document moves.

redact.py       the whole: finds the documents, writes changed files beside, replaces them, then the manifest
place.py        where the dataset is, in a directory or a bucket, and where changed files wait
beside.py       the files beside the shards without the documents
certificate.py  searches for what is left, and writes the certificate
"""
