"""The command line: ``shardwright COMMAND ...``, or ``python -m pipeline COMMAND ...``.

main.py           finds the command and runs it
command.py        what all commands share: the parser, exit statuses, errors, Ctrl-C, closed pipes
texts_options.py  what those that read texts share: flags of settings of a build, --list-rules, documents and bad records

build_command.py, inspect_command.py, verify_command.py, try_rules_command.py, trace_command.py  flags and output of these
import_command.py, export_command.py, card_command.py, texts_command.py, doctor_command.py       and of the others

A command is a module with a `command.Command` named ``COMMAND``, and one line below. The module is imported only when
the command is called, so ``shardwright --help`` loads nothing else.
"""

from __future__ import annotations

COMMANDS = {
    "build": "build verified shards from raw text",
    "inspect": "show a dataset at a glance, one document and its origin, or a batch",
    "verify": "recompute every hash, count and index of a dataset",
    "try-rules": "show what rules would drop from a sample of documents",
    "trace": "show which documents a training step was made of",
    "import": "make a dataset of token ids that are in files already",
    "export": "write a dataset as files of Megatron, nanoGPT or Parquet",
    "card": "write the README.md of a dataset for the Hugging Face hub",
    "texts": "export the texts that a build would read, with their keys, to score them elsewhere",
    "doctor": "say what this machine and this installation are",
}
"""Each command, in the order in which users need them, with one line of help; ``try-rules`` is in ``try_rules_command.py``."""
FIRST_COMMANDS = 5  # those that most people want
