"""The work directory of a build.

workspace.py  the layout of the work directory
bucket.py     an output in an object store: finished files move there
lock.py       lets one build at a time work in a directory
"""
