"""Adapters for agent frameworks: one module and one extra for each, and no other module imports them.

An adapter stores what its framework remembers on a bus; the commands, the dashboard, retention and backups know it.
Its framework is installed with the extra of the same name: ``pip install '.[pydantic-ai]'`` in the checkout.
"""
