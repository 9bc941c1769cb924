"""From definitions to tables: the registry, the plan of a change, and dropping generations."""
