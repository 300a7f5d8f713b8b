"""The command line: ``shardwright COMMAND ...``, or ``python -m pipeline COMMAND ...``.

main.py           finds the command and runs it
command.py        shared by all commands: the parser, exit statuses, errors, Ctrl-C, closed pipes
flags.py          the flags of a command, from its signature and a table of their help
texts_options.py  shared by commands that read texts: flags of a build's settings, --list-rules, documents and bad records

build_command.py, inspect_command.py, verify_command.py, try_rules_command.py, trace_command.py  a command each:
view_command.py, plan_command.py, find_command.py, diff_command.py, redact_command.py            its flags
import_command.py, export_command.py, card_command.py, texts_command.py                          and
near_vectors_command.py, doctor_command.py                                                       its output

A command is a module with a `command.Command` named ``COMMAND``, and one line below. The module is imported when the command is
called, so ``shardwright --help`` loads no command.
"""

from __future__ import annotations

COMMANDS = {
    "build": "build verified shards from raw text",
    "inspect": "show a dataset at a glance, one document and its origin, or a batch",
    "verify": "recompute every hash, count and index of a dataset",
    "try-rules": "show which documents of a sample rules would drop",
    "trace": "show the documents of a training step",
    "view": "write the rows of training steps, as the model reads them, to a page",
    "plan": "show what a run of a mix will read: rows, tokens and epochs of each source",
    "find": "say whether a dataset has a text, or the texts of a benchmark",
    "diff": "show what differs between two builds, and what changed rules did",
    "redact": "take documents out of a dataset, in place",
    "import": "make a dataset of token ids in files",
    "export": "write a dataset as files of Megatron, nanoGPT or Parquet",
    "card": "write the README.md of a dataset for the Hugging Face hub",
    "texts": "export the texts that a build would read, with their keys, to score them elsewhere",
    "near-vectors": "list documents whose vectors, made by your model, are near an earlier document's",
    "doctor": "check this machine and this installation",
}
"""Each command with one line of help, most used first; ``try-rules`` is in ``try_rules_command.py``."""
FIRST_COMMANDS = 5  # the commands that most people use
