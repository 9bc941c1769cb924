"""Replies: a response with statuses, as Arrow tables or as JSON."""
