# The packages of `make integrations`, pinned: one set of versions that can be installed together.
# claude-agent-sdk is 160 MB; google-adk limits the versions of opentelemetry, and its database service, which an adapter is
# compared with, needs sqlalchemy.
INTEGRATION_PACKAGES := \
	a2a-sdk[http-server]==1.3.0 \
	agent-framework-core==1.23.0 \
	claude-agent-sdk==0.2.183 \
	google-adk==2.13.0 \
	langgraph==1.2.22 \
	langgraph-checkpoint==4.3.2 \
	langgraph-checkpoint-conformance==0.0.2 \
	langgraph-checkpoint-sqlite==3.1.2 \
	openai-agents==0.24.0 \
	opentelemetry-exporter-otlp-proto-http==1.44.0 \
	opentelemetry-sdk==1.44.0 \
	prometheus_client==0.26.0 \
	pydantic-ai-slim[mcp]==2.66.0 \
	sqlalchemy[asyncio]==2.1.8
