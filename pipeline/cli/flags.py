"""Makes the flags of a command: types and defaults are those of its signature, a table has metavars and help."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from pipeline.objects.request_options import TIMEOUT, TRIES
from pipeline.objects.urls import is_remote

REQUEST_FLAGS = f"""\
--tries N          most attempts at one request to a server (default: {TRIES})
--timeout SECONDS  repeat a request if the server sends nothing for this long (default: {TIMEOUT:g})"""
_LINE = re.compile(r"(?P<flag>\S+)(?: (?P<metavar>[^\s|!]+))?(?: (?P<either>[|!]))?  +(?P<help>.+)")


class Show(argparse.Action):
    """A flag that prints the result of ``text()`` and ends the command, as ``--help`` does."""

    def __init__(self, option_strings: Sequence[str], dest: str, text: Callable[[], str], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> NoReturn:
        print(self._text().rstrip("\n"))
        parser.exit()


def local_file(text: str) -> Path:
    """Return the path of a file to write, for argparse; a url is wrong usage."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(f"{text} is a url; name a file of this machine, then copy it there")
    return Path(text)


LocalFile = Annotated[Path, local_file]


def add_flags(parser: argparse.ArgumentParser, function: Callable[..., object], table: str) -> None:
    """Add the parameters of a function to a parser: positional ones as arguments, keywords as flags.

    A line of the ``table`` has a flag with its metavar, or the metavar of the next argument, then the help. At most one of the
    flags that are marked ``|`` may be given, and exactly one of those marked ``!``. A line with a colon alone begins a group.
    Each use of a flag for a list adds an entry; if its metavar ends in dots, one use takes them all. What an annotation adds
    to a type parses the text, as `LocalFile` does, is the text that a flag of the type None prints, or is the least number.
    """
    hints, parameters = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    arguments = iter([name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD])
    groups: dict[str, Any] = {str(group.title): group for group in parser._action_groups}
    target: argparse._ActionsContainer = parser
    for line in re.sub(r"\n +", " ", table).splitlines():
        if line.endswith(":"):
            target = groups.get(line[:-1]) or parser.add_argument_group(line[:-1])
            continue
        flag, metavar, either, help = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        name = flag.lstrip("-").removeprefix("no-").replace("-", "_") if flag[0] == "-" else next(arguments)
        default, (kind, *more) = parameters[name].default, kind_of(hints[name])
        settings: dict[str, Any] = {"help": help, "default": default, "dest": name}
        if default is parameters[name].empty:
            del settings["default"]
            settings["required"] = True
        elif default is not None and kind is not bool and "(default" not in help:
            settings["help"] += f" (default: {default})"
        if kind is NoneType:
            settings = {"help": help, "action": Show, "text": more[0]}
        elif kind is bool:
            settings["action"] = "store_false" if default else "store_true"
        elif get_origin(kind) is Literal:
            settings["choices"] = get_args(kind)
        else:
            if get_origin(kind) is list:
                [kind] = get_args(kind)
                several = {"nargs": "*" if flag[0] != "-" and "required" not in settings else "+"}
                settings |= several if (metavar or flag).endswith("...") else {"action": "append"}
            settings["type"] = next(filter(callable, more), kind)
            settings["metavar"] = (metavar or flag.lstrip("-").replace("-", "_").upper()).removesuffix("...")
        if flag[0] != "-":
            settings.pop("required", None)
            settings["metavar"] = flag.removesuffix("...")
        if either and either not in groups:
            groups[either] = parser.add_mutually_exclusive_group(required=either == "!")
        (groups[either] if either else target).add_argument(*[flag] * (flag[0] == "-"), **settings)


def kind_of(hint: Any) -> list[Any]:
    """Return the type of a parameter, less None, then what its annotation adds."""
    if get_origin(hint) in (Union, UnionType):
        [hint] = [each for each in get_args(hint) if each is not NoneType]
    return [*get_args(hint)] if get_origin(hint) is Annotated else [hint]


def least_of(hint: Any) -> list[int]:
    """Return the least value of a parameter that is annotated ``Annotated[int, 1]``, if it has one."""
    return [each for each in kind_of(hint)[1:] if isinstance(each, int)]
