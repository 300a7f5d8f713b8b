"""Redacts documents of a finished dataset in place: their tokens become end-of-text ids, and no other document moves.

redact.py         runs a redaction: finds the documents, writes changed files aside, replaces files, then the manifest
workspace.py      where the dataset is, in a directory or a bucket, and where changed files wait
cleaned_files.py  copies the files beside the shards without the redacted documents
certificate.py    searches for copies that are left, and writes the certificate
"""
