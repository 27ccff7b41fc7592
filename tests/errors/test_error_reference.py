"""The reference of errors in the documentation is the one that the code gives."""

import re

from agentbus import errors
from tests.support.error_reference import PAGE, main, page


def test_the_page_of_errors_is_up_to_date() -> None:
    assert main(["--check"]) == 0, "run `make schemas`"


def test_every_public_error_has_an_entry_with_its_code() -> None:
    entries = dict(re.findall(r"^### (\w+)\n\n`(\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    public = {name: getattr(errors, name).code for name in errors.__all__ if name != "AgentBusError"}
    assert public.items() <= entries.items()


def test_the_page_leaves_no_template_unfilled() -> None:
    assert not re.findall(r"\{\w+(?:!r)?\}", page())
