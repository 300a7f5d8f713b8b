"""Run the units of a stage somewhere.

engine.py   what an engine is; this process and worker processes
engines.py  the engines by name
ray.py      Ray tasks
"""
