"""Rules: limits on measures, read from rule files.

ruleset.py       which limits documents violate
loader.py        rule files (TOML, FineWeb2's YAML) -> rules
columns.py       rules on fields of the record
resolve.py       names of measures -> functions, with their parameters
user_modules.py  modules of the user, kept as source text and loaded by hash
named_files.py   files that rules name, with their hashes
"""
