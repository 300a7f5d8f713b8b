"""Run the units of a stage somewhere.

engine.py   what an engine is
engines.py  the engines by name
local.py    this process, or worker processes
ray.py      Ray tasks
signals.py  signals whose exceptions a library swallows are raised again
"""
