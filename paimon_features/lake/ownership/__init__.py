"""Leases: each table has one owner that commits, and a fencing token tells owners apart."""
