"""Completion for bash and zsh, generated from the table of commands and their parsers."""

from __future__ import annotations

from argparse import ArgumentParser
from importlib import import_module

from agentbus.cli.context import Call, Command
from agentbus.cli.output import Result, Text

_AGENTS = ("send", "request")
"""Commands whose first argument is an agent."""
_LISTED = '"$(agentbus agents list --limit 1000 2>/dev/null | cut -f1)"'
_SESSIONS = '"$(agentbus session list --limit 1000 2>/dev/null | cut -f1)"'
_TYPES = '"$(agentbus types list 2>/dev/null | cut -f1)"'
_TASKS = '"$(agentbus task list --limit 1000 2>/dev/null | cut -f1)"'
_WORKFLOWS = '"$(agentbus task stats 2>/dev/null | grep ^workflow | cut -f2 | sort -u)"'
_STEPS = '"$(agentbus task show "$third" 2>/dev/null | grep ^step | cut -f2)"'
_ITEMS = '"$(agentbus task ready --manual --limit 1000 2>/dev/null | cut -f1)"'
_HELD = '"$(agentbus task take --held 2>/dev/null | cut -f1)"'
_OPEN = "cut -f1-3 | grep '^approval.*open$'"
_ASKED = f'"$(agentbus task show "$third" 2>/dev/null | {_OPEN} | cut -f2)"'
_SIGNALS = """"$(agentbus task show "$third" 2>/dev/null | grep '^step.*signal.*waiting' | cut -f2 | cut -d'#' -f1)\""""
_VALUES = '"$(agentbus task query "$third" 2>/dev/null | cut -f1)"'
_HOLDS = '"$(agentbus holds list --limit 1000 2>/dev/null | cut -f1)"'
_NOTIFIERS = '"$(agentbus notifications list 2>/dev/null | cut -f1)"'
_KINDS = '"$(agentbus histories list --limit 1000 2>/dev/null | cut -f1 | sort -u)"'
_PLAIN = "grep -x '[A-Za-z0-9._:@/-]*'"
_NAMES = f'"$(agentbus histories list "$third" --limit 1000 2>/dev/null | cut -f2 | {_PLAIN})"'
"""Only plain names: the shell expands the words that it completes, and the name of a history can be any text."""
_MEMBERS = {"agents": _LISTED, "session": _SESSIONS, "task": _TASKS, "holds": _HOLDS, "histories": _KINDS}
"""Families whose members take an id first."""
_FURTHER = {
    "task start": ("", _WORKFLOWS), "notifications test": ("", _NOTIFIERS),
    "task redo": ("t", _STEPS), "task settle": ("t", _STEPS), "task auto": ("t", '"on off"'),
    "task approve": ("t", _ASKED), "task reject": ("t", _ASKED),
    "task signal": ("t", _SIGNALS), "task query": ("t", _VALUES),
    "task take": ("", _ITEMS), "task finish": ("", _HELD), "task fail": ("", _HELD), "task release": ("", _HELD),
    "task progress": ("", _HELD),
    "histories show": ("t", _NAMES), "histories delete": ("t", _NAMES),
}  # fmt: skip
"""Completions after the member of a family ("") or after its id ("t"), where they differ from an id."""
_BASH = """\
# Completion of agentbus for bash. Load it with: eval "$(agentbus completion bash)"
_agentbus() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" name="" member="" third=""
    local index one found=""
    for ((index = 1; index < COMP_CWORD; index++)); do
        one="${{COMP_WORDS[index]}}"
        case "$one" in
            --agent|--url) ((index++)) ;;
            -*) ;;
            *) if [[ -z "$name" ]]; then name="$one"; elif [[ -z "$member" ]]; then member="$one"
               elif [[ -z "$third" ]]; then third="$one"; fi ;;
        esac
    done
    case "$before" in
        --agent|--parent|--sender|--of) found={listed} ;;
        --for) [[ "$name" == wait ]] && found={listed} ;;
        --session) found={sessions} ;;
        --after|--no-after) [[ "$name" == task && "$member" != log ]] && found={tasks} ;;
        --type) found={types} ;;
        *)
            case "$name" in
                "") found="{commands}" ;;
{families}
            esac
            case "$name $member ${{third:+t}}" in
{further}
            esac
            if [[ "$word" == -* ]]; then
                case "$name $member" in
{options}
                esac
            fi
            ;;
    esac
    COMPREPLY=($(compgen -W "$found" -- "$word"))
}}
complete -o default -F _agentbus agentbus
"""
_ZSH = """\
# Completion of agentbus for zsh. Load it with: eval "$(agentbus completion zsh)"
autoload -U +X bashcompinit && bashcompinit
"""


def completion(call: Call) -> Result:
    script = bash()
    return Text(script if call.arguments.shell == "bash" else _ZSH + script.partition("\n")[2])


def bash() -> str:
    """Return the script for bash. zsh runs the same script in its emulation of bash."""
    from agentbus.cli.clients import CLIENTS
    from agentbus.cli.command_table import COMMANDS as TABLE
    from agentbus.cli.main import parser

    members: dict[str, list[str]] = {}
    options: list[str] = []
    for name, (module, _) in TABLE.items():
        commands: dict[str, Command] = import_module(f"agentbus.cli.commands.{module}").COMMANDS
        for full, command in commands.items():
            if full.partition(" ")[0] != name:
                continue
            if " " in full:
                members.setdefault(name, []).append(full.partition(" ")[2])
            known = " ".join(sorted(parser(full, command).options()))
            pattern = f'"{full}"' if " " in full else f'"{full} "*'
            options.append(f'                    {pattern}) found="{known}" ;;')
    families = [
        f'                {name}) if [[ -z "$member" ]]; then found="{" ".join(found)}"'
        + (f"; else found={_MEMBERS[name]}" if name in _MEMBERS else "")
        + "; fi ;;"
        for name, found in members.items()
    ]
    families.append(f'                {"|".join(_AGENTS)}) [[ -z "$member" ]] && found={_LISTED} ;;')
    families.append(f'                setup) [[ -z "$member" ]] && found="{" ".join(CLIENTS)}" ;;')
    further = [f'                "{full} {after}") found={known} ;;' for full, (after, known) in _FURTHER.items()]
    return _BASH.format(
        commands=" ".join(TABLE), families="\n".join(families), listed=_LISTED, options="\n".join(options),
        sessions=_SESSIONS, tasks=_TASKS, types=_TYPES, further="\n".join(further),
    )  # fmt: skip


def _shell(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")


COMMANDS = {
    "completion": Command(
        completion, "Print the completion script for a shell.", 'eval "$(agentbus completion bash)"', _shell,
        output="plain output: the script",
    ),
}  # fmt: skip
