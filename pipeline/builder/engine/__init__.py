"""Run the units of a stage somewhere.

engine.py   what an engine is; this process and worker processes, and how signals end them
engines.py  the engines by name
ray.py      Ray tasks
"""
