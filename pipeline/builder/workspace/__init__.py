"""The directories of a build.

workspace.py         the work directory: layout, plan, lock
spool.py             inputs that hold their records -> files of the work directory
output_directory.py  a new build, one to continue, or one that is complete
plan_changes.py      what differs between the plan of a build and that of the command that continues it
atomic_directory.py  directories that appear under their name only when whole
locking.py           one build at a time in a directory
"""
