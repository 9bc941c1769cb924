"""Text from outside inside Python, TOML, Markdown, shell lines and metrics that we generate.

Names of columns, descriptions and values are chosen by whoever wrote a file. They enter generated
text only through these functions, and ``check_definitions`` refuses a definitions file that
contains anything but definitions.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from paimon_features.core.errors import DefinitionError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_MARKDOWN = re.compile(r"\w[\w .,:%@/()-]*")
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~-]")
_ARGUMENTS = (
    ast.Attribute, ast.Call, ast.Constant, ast.Dict, ast.List, ast.Load, ast.Name, ast.keyword,
)  # fmt: skip


def python_literal(value: Any) -> str:
    """Return the Python literal of texts, numbers, booleans, None, and lists and dicts of these.

    >>> python_literal({"it's": ['"', "a\\nb", 1, None]})
    '{"it\\'s": [\\'"\\', "a\\\\nb", 1, None]}'
    """
    if isinstance(value, str):
        shown = repr(str(value))
        return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in shown else shown
    if isinstance(value, Mapping):
        pairs = (f"{python_literal(k)}: {python_literal(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(python_literal, value))}]"
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    raise TypeError(f"{value!r} has no literal here")


def one_line(text: str) -> str:
    """Return the text with every character escaped that is not printable: it has one line.

    >>> one_line("a\\nimport os\\u2028é")
    'a\\\\nimport os\\\\u2028é'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def docstring_line(text: str) -> str:
    """Return the text as a line of a docstring in three double quotes."""
    return one_line(text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def toml_value(value: Any) -> str:
    """Return a TOML value of texts, numbers, booleans, and lists and mappings of these.

    >>> toml_value({"a b": ["\\x7f", 1, True]})
    '{ "a b" = ["\\\\u007f", 1, true] }'
    """
    if isinstance(value, str):
        return f'"{"".join(map(_toml_character, value))}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError(f"{value!r} has no TOML form here")


def toml_key(key: str) -> str:
    """Return a key of a TOML table, quoted where it has to be."""
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def _toml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    number = ord(character)
    if 0xD800 <= number < 0xE000:
        return "\ufffd"  # half of a character, which neither TOML nor UTF-8 can write
    if character.isprintable():
        return character
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def markdown_text(text: str) -> str:
    """Return the text for a line or a table's cell of Markdown: no markup, no HTML, no new cell.

    >>> markdown_text("log_loss"), markdown_text("a|b <img>")
    ('log_loss', 'a\\\\|b \\\\<img\\\\>')
    """
    if _PLAIN_MARKDOWN.fullmatch(text):
        return text
    return _MARKUP.sub(lambda match: f"\\{match[0]}", one_line(text))


def markdown_code(text: str) -> str:
    """Return a name as code in Markdown, or as escaped text if it is not plain."""
    return f"`{text}`" if _PLAIN_MARKDOWN.fullmatch(text) else markdown_text(text)


def jaas_text(text: str) -> str:
    """Return a value of a login module's options of Java, quoted."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def java_property(text: str) -> str:
    """Return the value of an entry of a Java properties file."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def metric_label(text: str) -> str:
    """Return the text as the quoted value of a label in Prometheus' text format."""
    plain = text.encode("utf-8", "replace").decode()
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def check_definitions(text: str) -> None:
    """Check that a generated definitions file only assigns definitions.

    Allowed are a docstring, ``import paimon_features as pf`` and ``name = pf.Class(...)`` whose
    arguments are literals, variables and further ``pf.Class(...)``.

    Raises
    ------
    DefinitionError
        For anything else; it is never run.
    """
    try:
        first, imported, *statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from error
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if not is_text or ast.unparse(imported) != "import paimon_features as pf":
        raise _refused("it does not begin with a docstring and 'import paimon_features as pf'")
    for statement in statements:
        if not (isinstance(statement, ast.Assign) and _is_definition(statement)):
            raise _refused(f"line {statement.lineno} is not 'name = pf.Class(...)'")


def _is_definition(statement: ast.Assign) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if name != "pf":
            return all(map(_is_argument, ast.walk(call)))
    return False


def _is_argument(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=function):
            return isinstance(function, ast.Attribute)
        case ast.Attribute(value=ast.Name(id="pf"), attr=name):
            return name[:1].isupper()
        case ast.keyword(arg=name):
            return name is not None
        case ast.Attribute():
            return False
    return isinstance(node, _ARGUMENTS)


def _refused(why: str) -> DefinitionError:
    return DefinitionError(
        f"the generated definitions are not only definitions: {why}; nothing was written. Rename "
        "the columns or objects whose names have unusual characters, and report this"
    )
