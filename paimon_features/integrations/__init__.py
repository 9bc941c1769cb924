"""Connections to other products: Feast, MCP, OpenLineage, FastAPI."""
