"""What notebooks show of the objects of this package, and progress below a cell.

Definitions, plans, results, statuses, readers and model versions show themselves. Arrow tables,
which ``get_historical_features`` returns, do so after::

    %load_ext paimon_features.core.notebook
"""

from __future__ import annotations

from typing import Any

from paimon_features.core.notebook.progress import ProgressBar, in_notebook

__all__ = ["ProgressBar", "in_notebook"]


def load_ipython_extension(shell: Any) -> None:
    """Show Arrow tables as tables, in this session; pyarrow is not imported for it."""
    from paimon_features.core.notebook.markup import arrow_table, card

    def shown(table: Any) -> str:
        return card("", arrow_table(table))

    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type_by_name("pyarrow.lib", "Table", shown)


def unload_ipython_extension(shell: Any) -> None:
    """Show Arrow tables as they show themselves."""
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.pop("pyarrow.lib.Table", None)
