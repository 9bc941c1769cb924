"""Objects that a ``with`` block closes."""

from __future__ import annotations

from typing import Self


class Closeable:
    """Gives a class with ``close()`` the ``with`` statement, which closes it at the end.

    >>> class Door(Closeable):
    ...     is_open = True
    ...     def close(self) -> None:
    ...         self.is_open = False
    >>> with Door() as door:
    ...     door.is_open
    True
    >>> door.is_open
    False
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError
