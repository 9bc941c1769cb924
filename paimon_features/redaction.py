"""Removes passwords, keys and tokens from texts that leave the process: errors, logs, replies."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from urllib.parse import quote, unquote

HIDDEN = "***"
_SHORTEST = 6
"""A shorter value of the environment is not searched: it would occur in other words."""
_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|PRIVATE|KEY(_ID)?$", re.I)
# every repetition is bounded: texts of clients must not cost quadratic time
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}://)([^\s'\"<>]{0,300})@")
_SETTING = re.compile(
    r"""((?:password|passwd|pwd|secret[._-]?(?:access[._-]?)?key|access[._-]?key(?:[._-]?(?:id|secret))?
    |session[._-]?token|api[._-]?key)['"]?\s*)
    (=>?\s*(?:"[^"]*"|'[^']*'|[^\s,;'")\]}]+)|:\s*(?:"[^"]*"|'[^']*'))""",
    re.I | re.X,
)
_TOKEN = re.compile(
    r"""\bpf_[A-Za-z0-9_-]{20,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    |(?<![\w-])eyJ[\w-]{10,400}\.[\w-]{2,8000}(?:\.[\w-]{0,2000})?  # a JWT""",
    re.X,
)
_BEARER = re.compile(r"\b(bearer|basic)\s+(?!<)[A-Za-z0-9._~+/=-]{8,}", re.I)


def redact(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text without secrets: logins in addresses, settings of passwords and keys, tokens, and
    whatever the environment has under the name of a secret.

    >>> redact("cannot connect to redis://shop:hunter2@db:6379/0", {})
    'cannot connect to redis://***@db:6379/0'
    >>> redact('PlainLoginModule required username="u" password="hunter2";', {})
    'PlainLoginModule required username="u" password=***;'
    >>> redact("refused hunter2!", {"PAIMON_FEATURES_ONLINE_PASSWORD": "hunter2"})
    'refused ***!'
    """
    for secret in sorted(_secrets(environ), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _LOGIN.sub(rf"\1{HIDDEN}@", text)
    text = _SETTING.sub(lambda found: f"{found[1]}{found[2][0]}{HIDDEN}", text)
    text = _TOKEN.sub(HIDDEN, text)
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


def print_redacted(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught error without secrets; for ``sys.excepthook``."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _secrets(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if _SECRET_NAME.search(name):
            found = [value]
        elif "://" in value and "@" in value:
            found = [login[2].partition(":")[2] for login in _LOGIN.finditer(value)]
        else:
            continue
        for secret in found:
            for form in {secret, unquote(secret), quote(secret, safe=""), repr(secret)[1:-1]}:
                if len(form) >= _SHORTEST:
                    yield form
