"""A project for programs that speak the Model Context Protocol: read-only tools over its data.

``FeatureTools`` has what the tools answer and knows nothing of the protocol; ``protocol`` connects
it to the official SDK (extra ``mcp``) over stdio or HTTP.
"""

from paimon_features.integrations.mcp.feature_tools import FeatureTools

__all__ = ["FeatureTools"]
