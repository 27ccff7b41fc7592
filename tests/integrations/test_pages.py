"""Run the pages of the adapters with the real frameworks."""

from __future__ import annotations

import pytest

from tests.docs import test_documentation as documentation
from tests.docs.markdown import Page

PAGES = {
    page.path.stem: page
    for page in documentation.PAGES
    if page.path.parent.name == "integrations" and any("needs" in block.marks for block in page.blocks)
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_blocks_of_a_page_run_with_its_framework(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in sorted({block.marks["needs"] for block in page.blocks if "needs" in block.marks}):
        pytest.importorskip(module, reason=f"{module} is not installed: run make integrations")
    documentation.test_the_blocks_of_a_page_run_in_their_order(page, monkeypatch)
