"""The online and offline store for Feast; needs Feast."""
