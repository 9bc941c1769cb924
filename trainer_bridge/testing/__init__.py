"""Contract classes, reference readers and small tables, for people who extend the bridge."""
