"""Documents next to the tables: generations, the registry, the audit log."""
