"""Dispatch: find the command, import only its module, build only its parser, run it, print the result."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from agentbus import core
from agentbus.cli import errors
from agentbus.cli.command_table import ALIASES, COMMANDS, DEFAULTS, LOGGED
from agentbus.cli.context import Call, Command, gather_settings
from agentbus.cli.errors import Usage
from agentbus.cli.output import escape_control_chars, write_json
from agentbus.errors import AgentBusError, OutOfRange
from agentbus.errors.base import shortened

if TYPE_CHECKING:
    from argparse import Namespace

    from agentbus.api.problems import Problem

# Loading a translation of argparse takes as long as building a parser.
argparse._ = str  # type: ignore[attr-defined]

_WITH_VALUE = ("--url", "--agent")
_HELP = ("-h", "--help")
_WIDTH = 100
"""Width of a formatter that prints nothing."""
_SIMILARITY = 0.65
"""Minimum similarity of a suggestion: sned and send, not kill and fail."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = _main(words)
    if core.tracer is not None:
        core.tracer.flush()
    return errors.DONE if code and _is_hook(words, code) else code


def _is_hook(words: list[str], code: int) -> bool:
    """Return True for an error of a hook, which must not block what its client is about to do. The exception is an
    interruption: its output must not count."""
    if "hook" not in words or "--debug" in words or code == errors.INTERRUPTED:
        return False
    return _command(words) == "hook"


def _writes_logs(words: list[str]) -> bool:
    """Return True for a command whose standard error is a structured log."""
    return os.environ.get("AGENTBUS_LOG", "").strip().lower() == "json" and _command(words) in LOGGED


def _command(words: list[str]) -> str | None:
    try:
        return _split(_split_at_dashes(words)[0])[0]
    except Usage:
        return None


def _main(words: list[str]) -> int:
    _open_streams()
    options, _ = _split_at_dashes(words)
    json, debug = "--json" in options, "--debug" in options
    logs = _writes_logs(words)
    try:
        code = _run(words, logs)
        sys.stdout.flush()
        return code
    except AgentBusError as error:
        return _report(error, json, logs, debug)
    except KeyboardInterrupt as error:
        if debug:
            _print_traceback(error)
        return errors.INTERRUPTED
    except BrokenPipeError:
        return _discard_output()
    except SystemExit as end:
        # Help, or a signal.
        return end.code if isinstance(end.code, int) else errors.DONE
    except OSError as error:
        shown = errors.from_os_error(error)
        shown.__cause__ = error
        return _report(shown, json, logs, debug)
    except Exception as error:
        from agentbus.core.validation import error_text

        unexpected = _Unexpected(reason=error_text(error))
        unexpected.__cause__ = error
        return _report(unexpected, json, logs, debug)


class _Unexpected(AgentBusError):
    code = "unexpected"
    fix_text = "--debug shows the traceback; please report it"


def _run(words: list[str], logs: bool) -> int:
    words, after = _split_at_dashes(words)
    for word in words:
        errors.check_text(word, "an argument")
    name, rest = _split(words)
    if name is None:
        return _list_commands(rest)
    module = import_module(f"agentbus.cli.commands.{COMMANDS[name][0]}")
    commands: dict[str, Command] = module.COMMANDS
    if name not in commands:
        name, rest = _resolve_subcommand(name, rest, commands)
    command = commands[name]
    if not command.runs:
        for word in after:
            errors.check_text(word, "an argument")
        rest += after
    own = parser(name, command)
    arguments = _parse(own, _options_first(own, rest))
    if command.runs:
        arguments.command = after[1:]
    call = Call(name, arguments, gather_settings(arguments), logs=logs)
    for text in call.settings.notes:
        call.note(f"agentbus: {text}")
    try:
        result = command.run(call)
        if not isinstance(result, int):
            call.emit(result)
            result = result.code
    except BaseException as error:
        # Record the visit even if the command failed, unless the store is unavailable.
        call.close(visit=isinstance(error, AgentBusError) and not error.transient)
        raise
    call.close(visit=True)
    return result


def parser(name: str, command: Command) -> Parser:
    """Return the parser of a command."""
    made = Parser(
        prog=f"agentbus {name}",
        description=command.purpose,
        epilog="\n".join(filter(None, ["example:", f"  {command.example}", command.output and f"\n{command.output}"])),
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    if command.arguments is not None:
        command.arguments(made)
    if command.columns:
        plain = made.add_argument_group("plain output, in a pipe or a file")
        plain.add_argument("--header", action="store_true", help="first print a line with the names of the columns")
        plain.add_argument(
            "--epoch", action="store_true", help="print times as milliseconds since 1970 (default: ISO 8601, UTC)"
        )
    common = made.add_argument_group("common options")
    common.add_argument(
        "--json", action="store_true", help="print JSON: {schema_version, data} or {schema_version, error}"
    )
    common.add_argument("--url", metavar="URL", help="the bus: a directory, or postgresql://… (AGENTBUS_URL)")
    common.add_argument("--agent", metavar="ID", help="the calling agent: id or id#epoch (AGENTBUS_AGENT)")
    common.add_argument("--quiet", action="store_true", help="print no notes and confirmations")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    common.add_argument("-h", "--help", action="help", default=SUPPRESS, help="show this help")
    return made


class _Formatter(RawDescriptionHelpFormatter):
    """A formatter of fixed width: argparse makes one per argument, and importing the module that reads the width
    of the terminal takes longer than building a parser. It is imported when help is printed."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH)


class Parser(ArgumentParser):
    """A parser that raises errors."""

    def format_help(self) -> str:
        from agentbus.cli.help import FittingFormatter

        self.formatter_class = FittingFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise Usage(reason=shortened(message), advice=f"see {self.prog} --help")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            found = error.__context__
            if isinstance(found, OutOfRange):
                raise OutOfRange(**{**found.facts, "what": error.argument_name}) from None
            raise

    def action(self, option: str) -> argparse.Action | None:
        return self._option_string_actions.get(option)

    def options(self) -> list[str]:
        return [option for option in self._option_string_actions if option.startswith("--")]

    def takes_words(self) -> bool:
        """Return True if there are arguments besides the options."""
        return bool(self._get_positional_actions())


def _parse(parser: Parser, words: list[str]) -> Namespace:
    arguments, unknown = parser.parse_known_args(words)
    # The mark before the other words, which ``_options_first`` adds.
    unknown = [word for word in unknown if word != "--"]
    if unknown:
        raise Usage(reason=f"unexpected argument {errors.echoed(unknown[0])}", advice=f"see {parser.prog} --help")
    return arguments


def _options_first(parser: Parser, words: list[str]) -> list[str]:
    """Return the options first, then the rest: argparse accepts no option among repeated arguments."""
    options: list[str] = []
    others: list[str] = []
    pending = list(reversed(words))
    while pending:
        word = pending.pop()
        if word == "--":
            others += reversed(pending)
            break
        if not word.startswith("-") or word == "-" or _is_number(word):
            others.append(word)
            continue
        name, given, _ = word.partition("=")
        action = parser.action(name)
        if action is None:
            raise _unknown_option(parser, name)
        if not given and pending and parser.action(pending[-1]) is None:
            if action.nargs is None:
                # A value, even if it looks like an option.
                word = f"{word}={pending.pop()}"
            elif action.nargs == "?" and not pending[-1].startswith("-"):
                options.append(word)
                word = pending.pop()
        options.append(word)
    return [*options, "--", *others] if others else options


def _unknown_option(parser: Parser, name: str) -> Usage:
    near = _closest(name, parser.options())
    advice = f"did you mean {near}?" if near else f"see {parser.prog} --help"
    if not near and parser.takes_words():
        advice = f"write -- before an argument that starts with -, or see {parser.prog} --help"
    return Usage(reason=f"{parser.prog} has no option {shortened(name)}", advice=advice)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before ``--``, and those from there on."""
    index = words.index("--") if "--" in words else len(words)
    return words[:index], words[index:]


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the command, and the words before and after it."""
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
                raise _unknown("no command", word, COMMANDS)
            return word, rest
    return None, words


def _resolve_subcommand(family: str, words: list[str], commands: dict[str, Command]) -> tuple[str, list[str]]:
    """Return the member of a family of commands, and the other words."""
    members = [name.partition(" ")[2] for name in commands if name.startswith(f"{family} ")]
    index = None
    for i in range(len(words)):
        if _is_word(words, i) and words[i] in members:
            return f"{family} {words[i]}", words[:i] + words[i + 1 :]
        # A word after an option may be its value.
        if _is_word(words, i) and (i == 0 or not words[i - 1].startswith("-")):
            index = i
            break
    if any(word in _HELP for word in words):
        _family_help(family, members, commands)
    if index is None and family in DEFAULTS:
        return f"{family} {DEFAULTS[family]}", words
    if index is None:
        raise Usage(
            reason=f"agentbus {family} requires one of {', '.join(members)}", advice=f"see agentbus {family} --help"
        )
    raise _unknown(f"agentbus {family} has no command", words[index], members)


def _is_word(words: list[str], index: int) -> bool:
    return not words[index].startswith("-") and (index == 0 or words[index - 1] not in _WITH_VALUE)


def _unknown(what: str, word: str, known: Any) -> Usage:
    from agentbus.cli.command_table import SYNONYMS

    more = ("help", "version") if known is COMMANDS else ()
    near = f"agentbus {SYNONYMS[word]}" if known is COMMANDS and word in SYNONYMS else _closest(word, [*known, *more])
    listed = ", ".join(known)
    advice = f"did you mean {near}?" if near else f"commands: {listed}"
    return Usage(reason=f"{what} {errors.echoed(word)}", advice=advice)


def _closest(word: str, known: list[str]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=1, cutoff=_SIMILARITY)
    return found[0] if found else None


def _list_commands(words: list[str]) -> int:
    """Print the list of commands, without importing any of them."""
    from agentbus import __version__

    if "--version" in words:
        print(f"agentbus {__version__}")
        return errors.DONE
    unknown = [word for word in words if word.startswith("-") and word not in (*_HELP, "--json", "--quiet", "--debug")]
    if unknown and unknown[0] not in _WITH_VALUE:
        raise Usage(reason=f"no option {shortened(unknown[0])}", advice="see agentbus --help")
    lines = ["usage: agentbus COMMAND …", "", "A durable bus for AI agents.", ""]
    lines += [f"  {name:<13} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    lines += ["", "agentbus help COMMAND describes a command; --json prints JSON.",
              "durations are in seconds, or have a unit: 500ms, 5s, 10m",
              "exit codes: 0 success, 1 failure, 2 usage, 3 try again, 4 nothing found or timed out"]  # fmt: skip
    requested = any(word in _HELP for word in words)
    print("\n".join(lines), file=sys.stdout if requested else sys.stderr)
    return errors.DONE if requested else errors.USAGE


def _family_help(family: str, members: list[str], commands: dict[str, Command]) -> NoReturn:
    from textwrap import fill

    from agentbus.cli.help import line_width

    indent, width = " " * 15, line_width()
    print(fill(f"usage: agentbus {family} {{{', '.join(members)}}} …", width, subsequent_indent=indent), end="\n\n")
    for member in members:
        command = commands[f"{family} {member}"]
        print(fill(f"  {member:<12} {command.purpose}", width, subsequent_indent=indent))
        print(f"{indent}{command.example}")
    raise SystemExit(errors.DONE)


def _report(error: AgentBusError, json: bool, logs: bool, debug: bool) -> int:
    try:
        if debug:
            _print_traceback(error)
        if json:
            write_json({"error": _describe(error)})
            # On a full disk, the buffer still holds it.
            sys.stdout.flush()
        else:
            _explain(error, logs)
    except BrokenPipeError:
        return _discard_output()
    except OSError:
        _discard_output()
        with suppress(OSError):
            _explain(error, logs)
    return errors.exit_code(error)


def _print_traceback(error: BaseException) -> None:
    """Print the traceback of an error, with the fixes for the command line."""
    from traceback import format_exception

    chained: BaseException | None = error
    while chained is not None:
        if isinstance(chained, AgentBusError) and chained.shell_fix != chained.fix:
            chained.__dict__["fix_text"] = chained.shell_fix_text
        chained = chained.__cause__ or chained.__context__
    print(escape_control_chars("".join(format_exception(error))), end="", file=sys.stderr)


def _describe(error: AgentBusError) -> Problem:
    from agentbus.api.problems import describe_error

    return describe_error(error, for_shell=True)


def _explain(error: AgentBusError, logs: bool) -> None:
    problem = _describe(error)
    if logs:
        from agentbus.cli.logs import log_error

        log_error(error, f"{problem.message} ({problem.fix})" if problem.fix else problem.message)
        return
    text = f"agentbus: {problem.message}" + (f"\n  {problem.fix}" if problem.fix else "")
    print(escape_control_chars(text), file=sys.stderr)


def _open_streams() -> None:
    """Replace closed streams (>&-) by the null device. Escape characters that the encoding does not have."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "encoding", "utf-8").lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _discard_output() -> int:
    """Discard the buffered output: the reader is gone, and the exit must not write it again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return errors.CLOSED_PIPE
