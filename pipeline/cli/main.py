"""The entry point of all commands: finds the command, imports it, and runs it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import pipeline
from pipeline.errors import ConfigError, did_you_mean
from pipeline.signals import deferred_signals

from . import COMMANDS, FIRST_COMMANDS
from .command import Command, Parser, exit_status


def main(argv: Sequence[str] | None = None, *, program: str = "shardwright") -> int:
    """Run ``shardwright COMMAND ...`` and return its exit status. The default of ``argv`` is the process's own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The first argument that is not a flag is the command, which gets all later arguments.
    end = next((index + 1 for index, item in enumerate(arguments) if not item.startswith("-")), len(arguments))

    def dispatch() -> int:
        parser = make_parser(program)
        name = parser.parse_args(arguments[:end]).command
        if name is None:
            parser.print_help()
            return 2
        if name not in COMMANDS:
            parser.error(f"no command {name!r}{did_you_mean(name, COMMANDS)}")
        return run_command(name, arguments[end:], program=f"{program} {name}")

    return exit_status(dispatch)


def make_parser(program: str) -> Parser:
    """Return the parser of the arguments up to the command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    listed = "\n".join([*lines[:FIRST_COMMANDS], "", *lines[FIRST_COMMANDS:]])
    parser = Parser(
        program,
        brief="COMMAND ...",
        description="Raw text to verified shards. Training streams them with `import pipeline`.",
        epilog=f"commands:\n{listed}\n\n{program} COMMAND --help explains a command.",
    )
    parser.usage = "%(prog)s [--help] [--version] COMMAND ..."
    parser.add_argument("--version", action="version", version=f"shardwright {pipeline.__version__}")
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of the commands below")
    return parser


def run_command(name: str, argv: Sequence[str] | None = None, *, program: str | None = None) -> int:
    """Run one command and return its exit status. ``program`` is its name in messages."""

    def load_and_run() -> int:
        check_filters()
        with deferred_signals():
            command = load_command(name)
            parser = command.make_parser(program)
        options = parser.parse_args(argv)
        return exit_status(lambda: command.call(options, parser), error_status=command.error_status, hint=command.hint)

    return exit_status(load_and_run)


def load_command(name: str) -> Command:
    command: Command = importlib.import_module(f"pipeline.cli.{name.replace('-', '_')}_command").COMMAND
    return command


def check_filters() -> None:
    """Raise ``ConfigError`` if Python imports another ``filters`` than the one installed next to ``pipeline``.

    A folder in PYTHONPATH may be the cause. Otherwise a command fails with an import error that names neither folder.
    """
    installed = Path(pipeline.__file__).resolve().parents[1]
    spec = importlib.util.find_spec("filters")
    folders = [Path(path).resolve() for path in (spec and spec.submodule_search_locations) or ()]
    if installed / "filters" not in folders[:1]:
        other = folders[0] if folders else spec and spec.origin
        raise ConfigError(
            f"'filters' is imported from {other}, which hides {installed / 'filters'}: rename the first, or remove its parent "
            "folder from PYTHONPATH"
        )
