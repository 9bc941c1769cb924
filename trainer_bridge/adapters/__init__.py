"""Adapters to training frameworks: each module is the only importer of its framework."""
