"""The documentation, executed: every block that can run is run, every relative link is followed.

The blocks of a page run in their order, as for a reader: in one empty directory, one Python namespace and one shell. An
HTML comment directly before a block says what else to do with it:

- ``<!-- not run: reason -->``: it cannot run here; the reason is mandatory, and the number of such blocks is bounded.
- ``<!-- exits 4 -->``: its last command has this exit status instead of 0.
- ``<!-- file: planner.py -->``: write it to this file instead of running it.
- ``<!-- background -->``: start the command beside the page, and interrupt it (SIGINT) at the end of the page.
- ``<!-- output -->``: it is the output of the block before.
- ``<!-- needs: agents -->``: run it where this module is installed: with ``make integrations``, not with ``make test``.

``<!-- setup … -->`` holds Python code that prepares the blocks after it; ``enter(manager)`` enters a context manager
until the page ends. A page that mentions POSTGRES_URL finds a server without a bus there.
"""
