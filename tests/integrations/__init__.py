"""The adapters of ``agentbus.integrations``, each with the real package of its framework.

``make integrations`` installs the packages into an environment of their own; elsewhere the tests are skipped.
"""
