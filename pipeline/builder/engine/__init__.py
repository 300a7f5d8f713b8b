"""Engines, which run the units of a stage.

engine.py   what an engine is, and the two engines of this machine
engines.py  the engines by name, and their options
ray.py      runs units as Ray tasks
"""
