"""Dispatch: look at the first word, import only the module of that command, build only its parser, run it, print."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from agentbus.errors import AgentBusError
from agentbus.interfaces.cli import failures
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.output import emit, write_json
from agentbus.interfaces.cli.settings import gathered
from agentbus.interfaces.cli.table import ALIASES, COMMANDS, DEFAULTS
from agentbus.interfaces.cli.texts import harmless

if TYPE_CHECKING:
    from argparse import Namespace

# Our words are English. Looking for a translation of argparse's takes as long as building a parser.
argparse._ = str  # type: ignore[attr-defined]

_WITH_VALUE = ("--url", "--agent")
_HELP = ("-h", "--help")
_WIDTH = 100
"""Characters of a line of help."""
_NEAR = 0.65
"""How alike two words are, of which one may be meant by the other: sned and send, not kill and fail."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; says what to exit with."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    own, _ = _parted(words)
    json, debug = "--json" in own, "--debug" in own
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except AgentBusError as error:
        if debug:
            raise
        return _failed(error, json)
    except KeyboardInterrupt:
        if debug:
            raise
        return failures.INTERRUPTED
    except BrokenPipeError:
        return _closed()
    except SystemExit as end:
        # Help, or a signal.
        return end.code if isinstance(end.code, int) else failures.DONE
    except OSError as error:
        if debug:
            raise
        return _failed(failures.named(error), json)
    except Exception as error:
        if debug:
            raise
        from agentbus.limits import error_text

        return _failed(_Unexpected(reason=error_text(error)), json)


class _Unexpected(AgentBusError):
    code = "unexpected"
    fix_text = "--debug shows where; please report it"


def _run(words: list[str]) -> int:
    words, after = _parted(words)
    for word in words:
        failures.check_text(word, "an argument")
    name, rest = _split(words)
    if name is None:
        return _overview(rest)
    module = import_module(f"agentbus.interfaces.cli.{COMMANDS[name][0]}")
    commands: dict[str, Command] = module.COMMANDS
    if name not in commands:
        name, rest = _member(name, rest, commands)
    command = commands[name]
    if not command.runs:
        for word in after:
            failures.check_text(word, "an argument")
        rest += after
    own = parser(name, command)
    arguments = _parsed(own, _arranged(own, rest))
    if command.runs:
        arguments.command = after[1:]
    call = Call(name, arguments, gathered(arguments))
    try:
        result = command.run(call)
        if not isinstance(result, int):
            emit(result, json=arguments.json)
            result = result.code
    except BaseException as error:
        # Whoever called in vain has called, unless nobody can write now.
        call.close(visit=isinstance(error, AgentBusError) and not error.transient)
        raise
    call.close(visit=True)
    return result


def parser(name: str, command: Command) -> Parser:
    """The parser of one command."""
    found = Parser(
        prog=f"agentbus {name}",
        description=command.purpose,
        epilog="\n".join(filter(None, ["example:", f"  {command.example}", command.output and f"\n{command.output}"])),
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    if command.arguments is not None:
        command.arguments(found)
    common = found.add_argument_group("options of every command")
    common.add_argument(
        "--json", action="store_true", help="print JSON: {schema_version, data} or {schema_version, error}"
    )
    common.add_argument("--url", metavar="URL", help="the bus: its directory, or postgresql://… (AGENTBUS_URL)")
    common.add_argument("--agent", metavar="ID", help="who is calling: id or id#epoch (AGENTBUS_AGENT)")
    common.add_argument("--quiet", action="store_true", help="no notes on stderr")
    common.add_argument("--debug", action="store_true", help="show where an error came from")
    common.add_argument("-h", "--help", action="help", default=SUPPRESS, help="show this help")
    return found


class _Formatter(RawDescriptionHelpFormatter):
    """Of a fixed width: argparse makes a formatter for every argument, and the module that knows the terminal's width
    takes longer to import than the parser to build. It is there when help is printed."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH)


class Parser(ArgumentParser):
    """Says what is wrong by an error, like everything else."""

    def format_help(self) -> str:
        from agentbus.interfaces.cli.helping import FittingFormatter

        self.formatter_class = FittingFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise Usage(reason=message, advice=f"{self.prog} --help shows how it is used")

    def action(self, option: str) -> argparse.Action | None:
        return self._option_string_actions.get(option)

    def options(self) -> list[str]:
        return [option for option in self._option_string_actions if option.startswith("--")]


def _parsed(parser: Parser, words: list[str]) -> Namespace:
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        raise Usage(reason=f"{unknown[0]!r} is too much", advice=f"{parser.prog} --help shows how it is used")
    return arguments


def _arranged(parser: Parser, words: list[str]) -> list[str]:
    """Options first, then all else: argparse takes no option in the middle of what an argument has several of."""
    options: list[str] = []
    others: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            others += reversed(left)
            break
        if not word.startswith("-") or word == "-" or _is_number(word):
            others.append(word)
            continue
        name, given, _ = word.partition("=")
        action = parser.action(name)
        if action is None:
            raise _no_option(parser, name)
        if not given and left and parser.action(left[-1]) is None:
            if action.nargs is None:
                # Whatever it looks like.
                word = f"{word}={left.pop()}"
            elif action.nargs == "?" and not left[-1].startswith("-"):
                options.append(word)
                word = left.pop()
        options.append(word)
    return [*options, "--", *others] if others else options


def _no_option(parser: Parser, name: str) -> Usage:
    near = _near(name, parser.options())
    advice = f"did you mean {near}?" if near else f"{parser.prog} --help shows its options"
    return Usage(reason=f"{parser.prog} has no option {name}", advice=advice)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--``, and what from there on."""
    index = words.index("--") if "--" in words else len(words)
    return words[:index], words[index:]


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """The command, and all else, whether it stands before or after it."""
    index = 0
    while index < len(words):
        word = words[index]
        if word in _WITH_VALUE:
            index += 2
        elif word.startswith("-") and word != "-":
            index += 1
        else:
            rest = words[:index] + words[index + 1 :]
            if word == "help":
                return _split([*rest, "--help"])
            if word == "version":
                return None, [*rest, "--version"]
            word = ALIASES.get(word, word)
            if word not in COMMANDS:
                raise _unknown("there is no command", word, COMMANDS)
            return word, rest
    return None, words


def _member(family: str, words: list[str], commands: dict[str, Command]) -> tuple[str, list[str]]:
    """Which of a family of commands is meant."""
    members = [name.partition(" ")[2] for name in commands if name.startswith(f"{family} ")]
    index = None
    for i in range(len(words)):
        if _is_word(words, i) and words[i] in members:
            return f"{family} {words[i]}", words[:i] + words[i + 1 :]
        # What stands after an option may be its value.
        if _is_word(words, i) and (i == 0 or not words[i - 1].startswith("-")):
            index = i
            break
    if any(word in _HELP for word in words):
        _family_help(family, members, commands)
    if index is None and family in DEFAULTS:
        return f"{family} {DEFAULTS[family]}", words
    if index is None:
        raise Usage(reason=f"agentbus {family} needs one of {', '.join(members)}", advice=f"agentbus {family} --help")
    raise _unknown(f"agentbus {family} has no command", words[index], members)


def _is_word(words: list[str], index: int) -> bool:
    return not words[index].startswith("-") and (index == 0 or words[index - 1] not in _WITH_VALUE)


def _unknown(what: str, word: str, known: Any) -> Usage:
    from agentbus.interfaces.cli.table import SYNONYMS

    more = ("help", "version") if known is COMMANDS else ()
    near = f"agentbus {SYNONYMS[word]}" if known is COMMANDS and word in SYNONYMS else _near(word, [*known, *more])
    listed = ", ".join(known)
    advice = f"did you mean {near}?" if near else f"there are {listed}"
    return Usage(reason=f"{what} {word!r}", advice=advice)


def _near(word: str, known: list[str]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=1, cutoff=_NEAR)
    return found[0] if found else None


def _overview(words: list[str]) -> int:
    """What there is, without importing any of it."""
    from agentbus import __version__

    if "--version" in words:
        print(f"agentbus {__version__}")
        return failures.DONE
    unknown = [word for word in words if word.startswith("-") and word not in (*_HELP, "--json", "--quiet", "--debug")]
    if unknown and unknown[0] not in _WITH_VALUE:
        raise Usage(reason=f"there is no option {unknown[0]}", advice="agentbus --help shows the commands")
    lines = ["usage: agentbus COMMAND …", "", "One durable bus for many agents.", ""]
    lines += [f"  {name:<12} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    lines += ["", "agentbus help COMMAND shows how each is used; --json gives JSON everywhere.",
              "lengths of time are seconds if nothing is said, or have a unit: 500ms, 5s, 10m",
              "exit codes: 0 done, 1 failed, 2 usage, 3 try again, 4 nothing there or timed out"]  # fmt: skip
    asked = any(word in _HELP for word in words)
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return failures.DONE if asked else failures.USAGE


def _family_help(family: str, members: list[str], commands: dict[str, Command]) -> NoReturn:
    from textwrap import fill

    from agentbus.interfaces.cli.helping import room

    indent, width = " " * 15, room()
    print(fill(f"usage: agentbus {family} {{{', '.join(members)}}} …", width, subsequent_indent=indent), end="\n\n")
    for member in members:
        command = commands[f"{family} {member}"]
        print(fill(f"  {member:<12} {command.purpose}", width, subsequent_indent=indent))
        print(f"{indent}{command.example}")
    raise SystemExit(failures.DONE)


def _failed(error: AgentBusError, json: bool) -> int:
    try:
        if json:
            write_json({"error": failures.described(error)})
            # On a full disk it is still in the buffer.
            sys.stdout.flush()
        else:
            _explain(error)
    except BrokenPipeError:
        return _closed()
    except OSError:
        _closed()
        with suppress(OSError):
            _explain(error)
    return failures.exit_code(error)


def _explain(error: AgentBusError) -> None:
    told = failures.described(error)
    text = f"agentbus: {told['message']}" + (f"\n  {told['fix']}" if told["fix"] else "")
    print(harmless(text), file=sys.stderr)


def _open_streams() -> None:
    """Where a shell has closed them (>&-), what is said goes nowhere. What an encoding has no letter for is escaped."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "encoding", "utf-8").lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _closed() -> int:
    """Nobody reads what we say any more: what is left in the buffers must not be tried again at the exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return failures.CLOSED_PIPE
