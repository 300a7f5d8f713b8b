"""Shared by all commands: the parser class, and the function that turns errors and signals into exit statuses.

0     done
1     an error; for some commands, a finding, as their help says
2     wrong usage, or a value that cannot be used
130   interrupted by Ctrl-C or SIGTERM
141   the reader of the output closed it, as ``| head`` does
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

from pipeline.errors import ConfigError, ShardwrightError, did_you_mean
from pipeline.objects.request_options import RequestOptions

from .flags import REQUEST_FLAGS, Show, add_flags, least_of

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

INTERRUPTED = 128 + signal.SIGINT
OUTPUT_CLOSED = 128 + signal.SIGPIPE
DONE = "exit status: 0 done; 1 an error; 2 wrong usage, or a value that cannot be used; 130 interrupted"


class Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage in two lines, and suggests a flag for a misspelt one.

    ``brief`` has the required arguments for the usage; only the help lists the flags. ``prog`` None means the script's name. If
    there are flags ``first``, ``--help`` explains these alone, and ``--help-all`` every flag.
    """

    def __init__(
        self, prog: str | None, *, brief: str, description: str, epilog: str = DONE, first: Sequence[str] = ()
    ) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        usage = f"%(prog)s {brief} [flags]"
        super().__init__(prog, usage, description, epilog, formatter_class=formatter, allow_abbrev=False)
        self.brief = brief
        self._first = {"--help", "--help-all", *first} if first else set()
        if first:
            self.add_argument("--help-all", action=Show, text=super().format_help, help="explain every flag, and exit")

    def format_help(self) -> str:
        flags = {each: each.help for each in self._actions if self._first and each.option_strings}
        for each in flags:
            if self._first.isdisjoint(each.option_strings):
                each.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for each, text in flags.items():
                each.help = text

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        # argparse would hide the error if the help cannot be written.
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments: --" in message:
            flag = message.split("unrecognized arguments: ")[1].split()[0].split("=")[0]
            known = {option.lstrip("-"): option for action in self._actions for option in action.option_strings}
            near = did_you_mean(flag.lstrip("-").replace("_", "-"), known, else_known=False)
            message += near.replace("'", "'--", 1)
        all_flags = "--help-all" if self._first else "--help"
        self.exit(2, f"error: {message}\nusage: {self.prog} {self.brief}; {all_flags} explains every flag\n")


def requests_of(options: argparse.Namespace) -> RequestOptions:
    """Return the values of `REQUEST_FLAGS`. Raises ``ConfigError`` if a value is wrong."""
    return RequestOptions(tries=options.tries, timeout=options.timeout)


def check_output(output: Path, inputs: Iterable[str | os.PathLike[str] | None], flag: str = "--output") -> None:
    """Raise ``ConfigError`` if an output is one of the ``inputs``, or if its folder does not exist: before the work."""
    if not output.parent.is_dir():
        raise ConfigError(f"{flag} {output}: {output.parent} is not a directory; make it first")
    for path in inputs if output.exists() else ():
        if path is not None and os.path.exists(path) and os.path.samefile(output, path):
            raise ConfigError(f"{flag} {output}: it is an input, which would be replaced; choose another name")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command: ``run`` returns the exit status. Its signature and the table ``flags`` make the parser: see `add_flags`.

    The flags of ``settings`` of a build are added at the line SETTINGS of the table, or after it. ``run`` gets the settings that
    the user named as ``settings``, the flags for requests as ``requests``, and the parser as ``parser``, for ``parser.error``. If
    there are flags ``first``, ``--help`` explains them alone.
    """

    run: Callable[..., int]
    flags: str
    description: str
    epilog: str = DONE
    brief: str  # the required arguments, for the usage
    first: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    error_status: int = 1
    hint: str = ""  # the cure after an interrupt or an error of the operating system

    def make_parser(self, prog: str | None) -> Parser:
        parser = Parser(prog, brief=self.brief, description=self.description, epilog=self.epilog, first=self.first)
        own, _, more = self.flags.partition("SETTINGS\n")
        add_flags(parser, self.run, own)
        if self.settings:
            from .texts_options import add_setting

            for name in self.settings:
                add_setting(parser, name)
        add_flags(parser, self.run, more)
        if "requests" in self.run.__annotations__:
            add_flags(parser, RequestOptions, REQUEST_FLAGS)
        return parser

    def call(self, options: argparse.Namespace, parser: Parser) -> int:
        """Run the command with parsed arguments."""
        values: dict[str, Any] = {}
        for name, hint in list(get_type_hints(self.run, include_extras=True).items())[:-1]:  # the last is of the result
            values[name] = getattr(options, name, None)
            for least in least_of(hint):
                if values[name] < least:
                    parser.error(f"--{name} must be {least} or more, got {values[name]}")
        if "requests" in values:
            values["requests"] = requests_of(options)
        if "parser" in values:
            values["parser"] = parser
        if "settings" in values:
            named = {name: getattr(options, name) for name in self.settings}
            values["settings"] = {name: value for name, value in named.items() if value is not None}
        return self.run(**values)


def exit_status(action: Callable[[], int], *, error_status: int = 1, hint: str = "") -> int:
    """Call ``action`` and return its exit status. An error or a signal is printed as one line and has its own status.

    Errors outside `pipeline.errors` and ``OSError`` are bugs. They are not caught, so a traceback is shown.

    >>> exit_status(lambda: 0)
    0
    """
    try:
        with _signals_as_interrupts(), _one_line_warnings(), _output_of_any_text():
            try:
                return action()
            finally:
                _flush()  # a closed pipe is handled here, but not at the end of the interpreter
    except KeyboardInterrupt as interrupt:
        # If the interrupt passed through an `exec` of a string (dataclasses use one), CPython ends by SIGINT and ignores
        # the exit status, although the interrupt is handled here. Another `exec` resets that.
        exec("")
        detail = str(interrupt) or hint
        return _end(INTERRUPTED, f"interrupted: {detail}" if detail else "interrupted")
    except ConfigError as error:
        return _end(2, f"error: {error}")
    except ShardwrightError as error:
        return _end(error_status, f"error: {error}")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich raises it when its output is closed
            return _end(OUTPUT_CLOSED)
        raise
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():  # not another pipe or socket
            return _end(OUTPUT_CLOSED)
        file = f"{error.filename}: " if error.filename else ""
        cure = "".join(f"; {text}" for text in (_cure(error), hint) if text)
        return _end(error_status, f"error: {file}{error.strerror or error}{cure}")


_CURES = {
    errno.EROFS: "choose another directory",
    errno.EACCES: "give this user access, or choose another directory",
    errno.EPERM: "give this user access, or choose another directory",
    errno.ENOSPC: "make room",
    errno.EFBIG: "raise the largest size of a file (ulimit -f), or choose another directory",
    errno.EDQUOT: "make room",
}


def _cure(error: OSError) -> str:
    """Return the cure of an error of the operating system, or '' if none is known."""
    folder = os.path.dirname(error.filename or "") or "."
    if error.errno == errno.ENOENT and not os.path.isdir(folder):
        return f"{folder} is not a directory; make it first"
    return _CURES.get(error.errno or 0, "")


def _flush() -> None:
    """Flush stdout. An ``OSError`` names the standard output."""
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        raise


def _end(status: int, line: str = "") -> int:
    """Print a line to stderr and return the status."""
    with suppress(OSError):
        if line:
            print(line, file=sys.stderr, flush=True)
    _discard_unwritable_output()
    return status


def _output_is_closed() -> bool:
    """Whether the reader of stdout or stderr has closed it."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a stream may have no file, as in tests
            poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_unwritable_output() -> None:
    """Discard the buffers of stdout and stderr if they cannot be written.

    Otherwise the interpreter tries to write them at its end, fails, prints a message, and changes the exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Handle SIGTERM, which schedulers send, like Ctrl-C, so that open files are closed.

    A second signal ends the process at once; otherwise the ending interpreter would print a traceback.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    if before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]  # the signal is ignored, or has a handler already
    if before[signal.SIGTERM] is _interrupt:
        del before[signal.SIGTERM]
    for number in before:
        signal.signal(number, _interrupt)
    _received.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if _received else handler)


_received: list[int] = []  # signals


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


@contextmanager
def _output_of_any_text() -> Iterator[None]:
    """Let a command print any text: as escapes if stdout or stderr cannot encode it, to nowhere if one is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # This takes the closed stream's file descriptor, which a file of a dataset would get otherwise.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (it stays open, as a stream does)
    before = [(stream, stream.errors) for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    try:
        for stream, _ in before:
            stream.reconfigure(errors="backslashreplace")
        yield
    finally:
        for stream, errors in before:
            with suppress(OSError):  # `reconfigure` flushes first
                stream.reconfigure(errors=errors)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print warnings as one line each, without file and source line."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *details: f"warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before
