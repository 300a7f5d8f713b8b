"""Engines: they run a unit function over units, and promise that each ran to its end at least once.

base.py     in this process or in worker processes
ray.py      as Ray tasks, with the same bytes as result
signals.py  Ctrl-C that a library swallows is raised again
"""
