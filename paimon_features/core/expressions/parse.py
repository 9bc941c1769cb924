"""From text to a typed tree: a Pratt parser (Pratt, "Top Down Operator Precedence", 1973).

Precedence, loosest first::

    OR
    AND
    NOT
    = == <> != < <= > >=  IS [NOT] NULL  [NOT] BETWEEN  [NOT] IN     (these do not chain)
    + -
    * / // %
    - (sign)
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from paimon_features.core.errors import DefinitionError, ExpressionError, unknown_name
from paimon_features.core.expressions.combine import COMBINATIONS
from paimon_features.core.expressions.nodes import (
    EPOCH_DATE,
    EPOCH_TIME,
    KEYWORDS,
    Expression,
    Literal,
    Name,
    promoted,
)
from paimon_features.core.expressions.operators import FUNCTIONS, NULL, build, no_null
from paimon_features.core.types.schema import (
    CONSTANTS,
    Bool,
    DataType,
    Date,
    Decimal,
    Float64,
    Int64,
    String,
    Timestamp,
    type_from_text,
)

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?::[A-Za-z_][A-Za-z0-9_]*)?)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<sign>//|==|!=|<>|<=|>=|[-+*/%=<>(),])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_COMPARISONS = {
    "=": "eq", "==": "eq", "<>": "ne", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _NEGATE = range(1, 8)
_INFIX = {
    "or": (_OR, "or"), "and": (_AND, "and"), "+": (_ADD, "add"), "-": (_ADD, "sub"),
    "*": (_MULTIPLY, "mul"), "/": (_MULTIPLY, "div"),
    "//": (_MULTIPLY, "floordiv"), "%": (_MULTIPLY, "mod"),
}  # fmt: skip
_COMPARE_WORDS = ("is", "in", "between", "not")
_MAX_DEPTH = 100
"""Maximum nesting; bounds the recursion of all functions of the tree and the size of its SQL."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int
    """Position of the first character, from 1."""

    @property
    def word(self) -> str:
        """The token for the grammar: keywords in lower case, signs, else empty."""
        if self.kind == "word" and self.text.lower() in KEYWORDS:
            return self.text.lower()
        return self.text if self.kind == "sign" else ""


def parse(text: str, columns: Mapping[str, DataType]) -> Expression:
    """Read an expression over ``columns`` and check its types.

    Keywords and function names are case-insensitive, column names are not. A column whose name is
    a keyword is written in double quotes; without them it is found where the text has no other
    reading. Integers are promoted to int64, floats to
    float64.
    ``columns`` may be any mapping: its ``get`` is called with the names that occur, and an
    ``ExpressionError`` that it raises is raised again with the position of the name.

    Raises
    ------
    ExpressionError
        If the text is not a valid expression or its types do not fit; the message names
        the text, the position (from 1), what was found, and what was expected.

    >>> from paimon_features.core.types.schema import Int32
    >>> parse("-n // 2 + 1", {"n": Int32}).text
    '-n // 2 + 1'
    >>> parse("quantity + 1", {"n": Int32})
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.ExpressionError: expression 'quantity + 1', position 1: \
unknown column 'quantity'; available: n
    """
    try:
        return _Parser(text, columns).parse()
    except ExpressionError:
        # the parts of a feature are written with the names of columns as they are
        again = _Parser(text, columns, prefer_columns=True)
        if not again.preferred:
            raise
        with suppress(ExpressionError):
            return again.parse()
        raise


_MEANT = {"&": "AND", "|": "OR", "!": "NOT", "^": "power(x, y)", "{": "(...)", "[": "(...)"}
"""How characters of other languages are written."""


_FIELDS = {
    "dow": "day_of_week", "dayofweek": "day_of_week", "isodow": "day_of_week",
    "weekday": "day_of_week", "doy": "day_of_year", "dayofyear": "day_of_year",
    "dayofmonth": "day", "isoweek": "week", "weekofyear": "week", "week_of_year": "week",
    "minutes": "minute", "seconds": "second", "hours": "hour", "hour_of_day": "hour",
}  # fmt: skip
"""Fields of times by their names in other languages."""
_SUBSTITUTES = {
    **{name: f"{field}(t)" for name, field in _FIELDS.items()},
    "datediff": "age_days(first, t)", "date_diff": "age_days(first, t)",
    "timestampdiff": "age_days(first, t)", "age": "age_days(first, t)",
    **dict.fromkeys(("datetrunc", "trunc", "time_bucket"), "date_trunc(unit, t)"),
}  # fmt: skip
"""What to write for functions of other languages."""


class _Parser:
    def __init__(
        self, text: str, columns: Mapping[str, DataType], *, prefer_columns: bool = False
    ) -> None:
        self._text = text
        self._columns = columns
        self._prefer_columns = prefer_columns
        self.preferred = False
        """Whether a keyword was read as the name of a column."""
        self._depth = 0
        self._index = 0
        self._tokens = self._split(text)

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while not tokens or tokens[-1].kind != "end":
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                rejected = "a string without its closing '" if text[at] == "'" else repr(text[at])
                meant = f"; write {_MEANT[text[at]]}" if text[at] in _MEANT else ""
                raise ExpressionError(
                    f"expression {text!r}, position {at + 1}: {rejected} is not part of the "
                    f"language{meant}"
                )
            kind = str(match.lastgroup)
            word = match[kind]
            if kind == "word" and self._is_column(word):
                kind, word, self.preferred = "quoted", f'"{word}"', True
            tokens.append(_Token(kind, word, match.start(match.lastgroup or 0) + 1))
            at = match.end()
        return tokens

    def _is_column(self, word: str) -> bool:
        """Return True if a keyword names a column here."""
        if not self._prefer_columns or word not in KEYWORDS or word in CONSTANTS:
            return False
        with suppress(ExpressionError):  # of a mapping that explains what is missing
            return self._columns.get(word) is not None
        return False

    # tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._next
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _error(self, token: _Token, message: str) -> ExpressionError:
        return ExpressionError(f"expression {self._text!r}, position {token.position}: {message}")

    def _unexpected(self, expected: str) -> ExpressionError:
        token = self._next
        got = "the end" if token.kind == "end" else repr(token.text)
        return self._error(token, f"got {got}, expected {expected}")

    def _accept(self, word: str) -> bool:
        if self._next.word != word:
            return False
        self._take()
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._unexpected(repr(word.upper()))

    def _build(
        self, op: str, args: Sequence[Expression], token: _Token, kind: DataType | None = None
    ) -> Expression:
        try:
            return build(op, args, kind)
        except ExpressionError as error:
            raise self._error(token, str(error)) from None

    # grammar

    def parse(self) -> Expression:
        expr = self._expression(0)
        if self._next.kind != "end":
            raise self._unexpected("an operator or the end")
        if expr.type is NULL:
            raise self._error(self._next, "NULL alone has no type; write CAST(NULL AS int64)")
        return expr

    def _expression(self, binding: int) -> Expression:
        """Parse operators that bind tighter than ``binding``."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(self._next, f"nested deeper than {_MAX_DEPTH}; derive columns first")
        left = self._prefix()
        height = 0
        while True:
            token = self._next
            if token.word in _COMPARISONS or token.word in _COMPARE_WORDS:
                if binding > _COMPARE:
                    break
                if binding == _COMPARE:
                    raise self._error(token, "comparisons do not chain; write AND or parentheses")
                left = self._comparison(left)
                if self._next.word in _COMPARISONS or self._next.word in _COMPARE_WORDS:
                    raise self._error(
                        self._next, "comparisons do not chain; write AND or parentheses"
                    )
                continue
            tightness, op = _INFIX.get(token.word, (0, ""))
            if tightness <= binding:
                break
            self._take()
            left = self._build(op, (left, self._expression(tightness)), token)
            height += 1
            if self._depth + height > _MAX_DEPTH:
                raise self._error(token, f"more than {_MAX_DEPTH} operators; derive columns first")
        self._depth -= 1
        return left

    def _comparison(self, left: Expression) -> Expression:
        token = self._take()
        if token.word in _COMPARISONS:
            right = self._expression(_COMPARE)
            return self._compare(_COMPARISONS[token.word], token.word, (left, right), token)
        if token.word == "is":
            op = "isnotnull" if self._accept("not") else "isnull"
            self._expect("null")
            return self._build(op, (left,), token)
        if token.word == "not":
            if self._next.word not in ("in", "between"):
                raise self._unexpected("'IN' or 'BETWEEN'")
            return self._build("not", (self._comparison(left),), token)
        if token.word == "between":
            low = self._expression(_COMPARE)
            self._expect("and")
            high = self._expression(_COMPARE)
            above = self._compare("ge", "BETWEEN", (left, low), token)
            below = self._compare("le", "BETWEEN", (left, high), token)
            return self._build("and", (above, below), token)
        self._expect("(")
        items = self._arguments()
        if left.type is not NULL:
            self._check_no_null("IN", (left,), token)
        return self._build("in", (left, *items), token)

    def _compare(self, op: str, sign: str, args: Sequence[Expression], token: _Token) -> Expression:
        self._check_no_null(sign, args, token)
        return self._build(op, args, token)

    def _check_no_null(self, what: str, args: Sequence[Expression], token: _Token) -> None:
        try:
            no_null(what, args)
        except ExpressionError as error:
            raise self._error(token, str(error)) from None

    def _arguments(self) -> list[Expression]:
        """Parse expressions up to the closing parenthesis; the opening one has been consumed."""
        args = [self._expression(0)]
        while self._accept(","):
            args.append(self._expression(0))
        self._expect(")")
        return args

    def _prefix(self) -> Expression:
        token = self._next
        if token.kind == "number":
            return self._number(self._take(), "")
        if token.kind == "string":
            return Literal(String, self._take().text[1:-1].replace("''", "'"))
        if token.kind == "quoted":
            return self._name(self._take().text[1:-1].replace('""', '"'), token)
        if token.word == "-":
            self._take()
            if self._next.kind == "number":
                return self._number(self._take(), "-")
            return self._build("neg", (self._expression(_NEGATE),), token)
        if token.word == "not":
            self._take()
            return self._build("not", (self._expression(_NOT),), token)
        if token.word == "(":
            self._take()
            inner = self._expression(0)
            self._expect(")")
            return inner
        if token.word in ("true", "false"):
            return Literal(Bool, self._take().word == "true")
        if token.word == "null":
            self._take()
            return Literal(NULL, None)
        if token.word == "case":
            return self._case()
        if token.word == "cast":
            return self._cast()
        if token.kind == "word" and not token.word:
            return self._named()
        raise self._unexpected("a column, a constant, a function or '('")

    def _number(self, token: _Token, sign: str) -> Expression:
        if token.text.isdigit():
            value = int(sign + token.text)
            if not -(2**63) <= value < 2**63:
                raise self._error(token, f"{sign}{token.text} is not an int64")
            return Literal(Int64, value)
        number = float(sign + token.text)
        if not math.isfinite(number):
            raise self._error(token, f"{sign}{token.text} is not a float64")
        return Literal(Float64, number or 0.0)

    def _named(self) -> Expression:
        """Return a column, a function call, or a typed literal such as DATE '2011-12-09'."""
        token = self._take()
        if self._next.kind == "string" and token.text.lower() in ("date", "timestamp", "decimal"):
            return self._typed_literal(token.text.lower(), self._take())
        if not self._accept("("):
            return self._name(token.text, token)
        function = token.text.lower()
        if function in COMBINATIONS:
            return self._combination(function, token)
        if function not in FUNCTIONS:
            raise self._error(token, self._unknown_function(token.text))
        return self._build(function, self._arguments(), token)

    def _unknown_function(self, name: str) -> str:
        """Return the message about a function that does not exist, with what to write instead."""
        meant = _SUBSTITUTES.get(name.lower())
        if name.lower() in ("extract", "date_part", "datepart"):
            field = self._next.text.strip("'").lower()
            field = _FIELDS.get(field, field)
            meant = f"{field}(t)" if field in COMBINATIONS else "year(t), hour(t), day_of_week(t)"
        if meant is not None:
            return f"unknown function {name!r}; write {meant}"
        return unknown_name("function", name, [*FUNCTIONS, *COMBINATIONS])

    def _combination(self, function: str, token: _Token) -> Expression:
        """Parse arguments, then options such as ``zero=0``; the opening parenthesis is consumed."""
        combination = COMBINATIONS[function]
        args: list[Expression] = []
        options: dict[str, Expression] = {}
        while True:
            option = self._option(function, combination.options)
            if option is not None:
                options[option] = self._expression(0)
            elif options:
                raise self._unexpected("an option, because arguments come before options")
            else:
                args.append(self._expression(0))
            if not self._accept(","):
                break
        self._expect(")")
        try:
            return combination.build(args, options)
        except ExpressionError as error:
            raise self._error(token, str(error)) from None

    def _option(self, function: str, options: Sequence[str]) -> str | None:
        """Return the name of the option that begins here, with its ``=``; None for an argument."""
        name, follows = self._next, self._tokens[min(self._index + 1, len(self._tokens) - 1)]
        if name.kind != "word" or follows.word != "=":
            return None
        if name.text not in options:
            if name.text in self._columns:
                return None  # a comparison
            raise self._error(name, unknown_name("option", name.text, options, function))
        self._take()
        self._take()
        return name.text

    def _name(self, name: str, token: _Token) -> Expression:
        try:
            kind = self._columns.get(name)
        except ExpressionError as error:
            raise self._error(token, str(error)) from None
        if kind is None:
            raise self._error(token, unknown_name("column", name, self._columns))
        return Name(promoted(kind), name, kind)

    def _typed_literal(self, kind: str, token: _Token) -> Expression:
        text = token.text[1:-1]
        try:
            if kind == "date":
                return Literal(Date, (dt.date.fromisoformat(text) - EPOCH_DATE).days)
            if kind == "timestamp":
                time = dt.datetime.fromisoformat(text)
                if time.tzinfo is None and time.microsecond % 1000 == 0:
                    return Literal(Timestamp, (time - EPOCH_TIME) // dt.timedelta(milliseconds=1))
            elif re.fullmatch(r"-?\d+(\.\d+)?", text):
                value = decimal.Decimal(text)
                scale = len(text.partition(".")[2])
                digits = max(len(value.as_tuple().digits), scale)
                return Literal(Decimal(max(digits, 1), scale), value)
        except ValueError:
            pass
        form = {
            "date": "YYYY-MM-DD", "timestamp": "YYYY-MM-DD HH:MM:SS.mmm (UTC, no zone)",
            "decimal": "digits, a point, digits, 38 at most",
        }[kind]  # fmt: skip
        raise self._error(token, f"{text!r} is not a {kind}; expected {form}")

    def _case(self) -> Expression:
        token = self._take()
        args: list[Expression] = []
        if self._next.word != "when":
            raise self._unexpected("'WHEN' (CASE has conditions, not a value to compare)")
        while self._accept("when"):
            when = self._next
            args.append(self._expression(0))
            if args[-1].type is NULL:
                raise self._error(when, "CASE WHEN NULL is never chosen; write x IS NULL")
            self._expect("then")
            args.append(self._expression(0))
        args.append(self._expression(0) if self._accept("else") else Literal(NULL, None))
        self._expect("end")
        return self._build("case", args, token)

    def _cast(self) -> Expression:
        token = self._take()
        self._expect("(")
        arg = self._expression(0)
        self._expect("as")
        kind = self._type()
        self._expect(")")
        return self._build("cast", (arg,), token, kind)

    def _type(self) -> DataType:
        token = self._take()
        text = token.text.lower()
        if text == "decimal" and self._accept("("):
            precision = self._take().text
            self._expect(",")
            text = f"decimal({precision}, {self._take().text})"
            self._expect(")")
        try:
            kind = type_from_text(text)
        except DefinitionError:
            raise self._error(
                token,
                f"unknown type {text!r}; casts support int64, float64, string, bool, those of "
                "NULL to any type",
            ) from None
        if kind != promoted(kind):
            raise self._error(
                token, f"{text} is represented as {promoted(kind).text}; cast to that"
            )
        return kind
