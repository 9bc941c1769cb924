"""``python -m paimon_features`` is the command ``paimon-features``."""

from paimon_features.cli import main

main()
