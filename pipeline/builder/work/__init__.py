"""The work directory of a build.

workspace.py         the work directory: layout, plan, lock
atomic_directory.py  directories that appear under their name only when whole
bucket.py            an output in an object store: what is finished moves there
lock.py              one build at a time in a directory
"""
