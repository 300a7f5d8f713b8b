"""Engines, which run the units of a stage.

local.py    what an engine is, and the two engines of this machine
options.py  the engines by name, and their options
ray.py      runs units as Ray tasks
"""
