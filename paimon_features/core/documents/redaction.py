"""Removes passwords, keys and tokens from texts that leave the process: errors, logs, replies."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
_SHORTEST = 6
"""A shorter value of the environment is not searched: it would occur in other words."""
_FOLDERS = ("PWD", "OLDPWD")
"""Variables of every shell that are no passwords, in spite of their names."""
_SECRET_NAME = re.compile(
    r"PASS(WORD|WD|PHRASE)|PWD$|SECRET|TOKEN|CREDENTIAL|PRIVATE|KEY(_ID)?$", re.I
)
# every repetition is bounded: texts of clients must not cost quadratic time
_LOGIN = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,31}(?:://|%3A%2F%2F))([^\s'\"<>]{0,300})(@|%40)", re.I
)
_BARE_LOGIN = re.compile(
    r"(?<![\w./:@%-])([\w.%+-]{0,64}:)([^\s'\"<>@/\\,;]{1,200})(@(?:[A-Za-z\[(]|[0-9]{1,3}\.))"
)
_NAME = r"""(?:
    pass(?:word|wd|phrase|code)|requirepass|masterauth|\bpwd|_pwd|secret|credentials?(?![a-z])
    |(?:access|account|api|auth|encryption|features|master|private|secret|shared|shared[._-]?access
        |signing|storage)[._-]?key
    |(?:access|api|auth|bearer|id|refresh|sas|security|session)[._-]?token|(?<![a-z'"])token
    |(?<=[?&])token|(?:x-amz-)?signature(?==|%3D)|(?<=[?&;])sig(?==)
)(?:[._-]?(?:access[._-]?key|id|key|name|secret|value|string))?"""
_ESCAPE = r"\\{0,4}"
_QUOTED = (
    r"""(?:[brufBRUF]{0,2}(?:\"\"\".{0,1000}?(?:\"\"\"|$)|\'\'\'.{0,1000}?(?:\'\'\'|$)"""
    r"""|"(?:[^"\\\n]|\\.){0,1000}"?|'(?:[^'\\\n]|\\.){0,1000}'?)"""
    r"""|\\{1,4}".{0,1000}?(?:\\{1,4}"|$)|\\{1,4}'.{0,1000}?(?:\\{1,4}'|$))"""
)
_SETTING = re.compile(
    rf"""({_NAME}{_ESCAPE}['"\]]{{0,2}}\s{{0,8}})
    (?:(?P<is>:?=>?\s{{0,8}}|%3D)(?P<a>{_QUOTED}|(?!\s)[^\s,;'"&)\]}}<]{{1,1000}}?(?=%26|[\s,;'"&)\]}}<]|$))
    |(?P<has>:\s{{0,8}}|%3A)(?P<b>{_QUOTED})
    |(?P<pair>(?<=['"]),\s{{0,8}}|(?<=['"]\s),\s{{0,8}})(?P<c>{_QUOTED}))""",
    re.I | re.X | re.S | re.M,
)
_YAML = re.compile(
    rf"""(^[ \t{{,-]{{0,40}}["']?[\w.-]{{0,60}}?{_NAME}["']?\s?:[ \t]{{1,8}})
    ([^\s<'"\[{{][^\s]{{0,1000}})(?=[ \t]{{0,8}}(?:$|,|\}}|\#))""",
    re.I | re.X | re.M,
)
_XML = re.compile(
    rf"(<[\w:.-]{{0,60}}?{_NAME}[\w.-]{{0,30}}>|{_NAME}\s{{0,4}}</name>\s{{0,40}}<value>)"
    r"[^<]{1,1000}(?=</)",
    re.I | re.X,
)
_OPTION = re.compile(
    rf"((?<!\S)--?[\w.-]{{0,40}}?{_NAME}\s{{1,4}}|\b(?:requirepass|masterauth)\s{{1,4}})"
    rf"({_QUOTED}|(?!(?-i:[A-Z]{{2,20}}\b)|<|-|(?:is|are|or|and|must|needs?|to|goes?|of|for)\b)[^\s,;]{{1,1000}})",
    re.X | re.I,
)
_HEADER = re.compile(
    rf"""(\b(?:proxy-)?authorization|\bx-[\w-]{{0,30}}(?:key|token|secret)|\b(?:set-)?cookie)
    ({_ESCAPE}['"]?\s{{0,4}}[:=,]\s{{0,4}}(?:[brBR]{{0,2}}{_ESCAPE}['"])?)
    (?!(?:basic|bearer)\s{{1,4}}<)
    ((?:basic|bearer|digest|negotiate|token|aws4-hmac-sha256)\s{{1,4}})?
    (?!<|\*\*\*)[^\s'"\\<][^'"\r\n\\]{{0,2000}}""",
    re.I | re.X,
)
_AUTH_CALL = re.compile(r"""(['"]AUTH['"])(?:\s{0,4},\s{0,4}b?['"][^'"\n]{0,300}['"]){1,2}""")
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----).{0,20000}?(-----END [A-Z ]{0,30}KEY-----|\Z)", re.S
)
_TOKEN = re.compile(
    r"""\bpf_[A-Za-z0-9_-]{20,400}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    |\b(?:gh[opsur]_|github_pat_|glpat-|hf_|npm_|pypi-|dapi|sk-|xox[abprs]-|AIza|ya29\.)
        [A-Za-z0-9_.-]{16,400}
    |(?<![\w-])eyJ[\w-]{10,400}\.[\w-]{2,8000}(?:\.[\w-]{0,2000})?  # a JWT""",
    re.X,
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,8}(?!<)[A-Za-z0-9._~+/=-]{8,4000}", re.I)


def redact(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the text without secrets: logins in addresses, settings of passwords and keys, tokens,
    and whatever the environment has under the name of a secret.

    >>> redact("cannot connect to redis://shop:hunter2@db:6379/0", {})
    'cannot connect to redis://***@db:6379/0'
    >>> redact('PlainLoginModule required username="u" password="hunter2";', {})
    'PlainLoginModule required username="u" password=***;'
    >>> redact("refused hunter2!", {"PAIMON_FEATURES_ONLINE_PASSWORD": "hunter2"})
    'refused ***!'
    """
    for secret in sorted(_secrets(environ), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
    text = _LOGIN.sub(rf"\1{HIDDEN}\3", text)
    text = _BARE_LOGIN.sub(rf"\1{HIDDEN}\3", text)
    text = _HEADER.sub(rf"\1\2\3{HIDDEN}", text)
    text = _SETTING.sub(_without_value, text)
    for pattern in (_YAML, _XML, _OPTION):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    text = _AUTH_CALL.sub(rf"\1, {HIDDEN}", text)
    text = _TOKEN.sub(HIDDEN, text)
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


def _without_value(match: re.Match[str]) -> str:
    value = match["a"] or match["b"] or match["c"] or ""
    if value.strip("\"'\\") in ("", HIDDEN):
        return match[0]
    return f"{match[1]}{(match['is'] or match['has'] or match['pair']).rstrip()}{HIDDEN}"


def redact_uncaught_errors() -> None:
    """Print uncaught errors of this process, its threads' included, without secrets."""
    sys.excepthook = print_redacted
    threading.excepthook = _of_thread


def _of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        print_redacted(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


def print_redacted(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught error without secrets; for ``sys.excepthook``."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _secrets(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if name in _FOLDERS:
            continue
        if _SECRET_NAME.search(name):
            secrets = [value]
        elif "://" in value and "@" in value:
            secrets = [login[2].partition(":")[2] for login in _LOGIN.finditer(value)]
        else:
            continue
        for secret in secrets:
            for plain in {secret, unquote(secret)}:
                yield from (form for form in _forms(plain) if len(form) >= _SHORTEST)


def _forms(secret: str) -> set[str]:
    """Return how a text is written in addresses, JSON, Python, HTML, headers and shells."""
    data = secret.encode("utf-8", "surrogateescape")
    escaped = repr(secret)[1:-1]
    addresses = {quote(data, safe=""), quote(data), quote_plus(data)}
    return {
        secret, escaped, repr(escaped)[1:-1], repr(data)[2:-1], html.escape(secret),
        json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(secret))[3:-3], secret.replace("'", "'\"'\"'"),
        secret.replace("\\", "\\\\").replace('"', '\\"'), *addresses,
        *(re.sub(r"%..", lambda match: match[0].lower(), address) for address in addresses),
        *(quote(address, safe="") for address in addresses),
        base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex(),
    }  # fmt: skip
