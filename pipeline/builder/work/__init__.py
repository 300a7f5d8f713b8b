"""The work directory of a build.

workspace.py  the work directory: layout, plan, lock
bucket.py     an output in an object store: what is finished moves there
lock.py       one build at a time in a directory
"""
