"""Communication with durable tasks: send signals, read the values that they expose."""

from __future__ import annotations

from argparse import ArgumentParser

from agentbus.cli.arguments import JSON_HELP, payload, text_option
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import querying
from agentbus.cli.operators import sender
from agentbus.cli.output import Done, Notice, Result, Rows, bare

VALUES = ("name", "value:json")


def signal(call: Call) -> Result:
    given = call.arguments
    receipt = call.bus.do(
        call.bus.tasks.signal(
            given.task, given.name, payload(call, "value"), signal_id=given.signal_id, by=sender(call)
        )
    )
    done = f"{receipt.signal_id} was sent before" if receipt.duplicate else f"sent {receipt.name} to {receipt.task}"
    return Done(receipt, done, receipt.signal_id)


def query(call: Call) -> Result:
    given = call.arguments
    with querying():
        if given.name is not None:
            found = call.bus.do(call.bus.tasks.query(given.task, given.name))
            return Notice({"name": given.name, "value": found}, bare(found))
        values = call.bus.do(call.bus.tasks.query(given.task))
    rows = [{"name": name, "value": found} for name, found in values.items()]
    return Rows(rows, VALUES, paged=False, empty=f"{given.task} has exposed no values")


def _signal(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("task", help="its id")
    add("name", help="name of the signal, as in task.signal(NAME)")
    add("value", nargs="?", help=f"value: {JSON_HELP} (default: null)")
    text_option(parser)
    add("--signal-id", metavar="ID", help="id of the signal; the same id is one signal, so that a retry is safe")
    add("--by", metavar="NAME", help="the sender (default: the agent, AGENTBUS_OPERATOR, or the user account)")


def _query(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")
    parser.add_argument("name", nargs="?", help="name of the value, as in task.expose(NAME, …) (default: all)")


COMMANDS = {
    "task signal": Command(
        signal, "Send a signal to a task, which receives it now or when it waits for it. It is on disk when the command"
        " returns.",
        "agentbus task signal order-7 payment '{\"paid\": 12}'", _signal, output="plain output: the id of the signal",
    ),
    "task query": Command(
        query, "Show the values that a task exposes: the last of each name, also after it has ended.",
        "agentbus task query feature-1 stage", _query,
        output="plain output: the value (a string as is, other values as JSON); without a name: name, value",
        columns=True,
    ),
}  # fmt: skip
