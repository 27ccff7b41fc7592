"""LangGraph on a bus: ``AgentBusSaver`` stores the checkpoints of graphs, ``AgentBusStore`` their long-term memory.

>>> async with agentbus.connect() as bus:                                             # doctest: +SKIP
...     graph = builder.compile(checkpointer=AgentBusSaver(bus), store=AgentBusStore(bus))
...     await graph.ainvoke(question, {"configurable": {"thread_id": "chat-7"}})

Needs ``langgraph-checkpoint``, which LangGraph brings: ``pip install '.[langgraph]'`` in the checkout.
"""

from agentbus.integrations.langgraph.saver import AgentBusSaver
from agentbus.integrations.langgraph.store import AgentBusStore

__all__ = ["AgentBusSaver", "AgentBusStore"]
