"""A Kafka topic as SQL: one JSON object, or one envelope of Debezium, per message.

::

    in_0 (Kafka) -> lines -> text ----------------> split -> cells
                              '--> (Debezium) changes -'

``lines`` has the message's value without the header of a schema registry, cut where it is too long.
``changes`` has a row for each change of an envelope: an update is the old row, retracted, and the
new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paimon_features.core.configuration.kafka_settings import DISCOVERY_MS, check_brokers
from paimon_features.core.errors import ConfigurationError
from paimon_features.definitions import EventSource
from paimon_features.definitions.source import RETRACTED_KINDS
from paimon_features.ingest.flink.scan_sql import (
    InputScan,
    cell,
    json_cells,
    json_path,
    line_text,
    once,
    sql_options,
)
from paimon_features.ingest.input_columns import InputColumn, check_changes, check_mapping
from paimon_features.ingest.long_lines import CUT_LINE
from paimon_features.ingest.physical import TEXT, check_readable
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.events.rejects import UNREADABLE

JSON, DEBEZIUM = "json", "debezium-json"
FORMATS = (JSON, DEBEZIUM)
COMMITTED, EARLIEST, LATEST = "committed", "earliest", "latest"
_STARTUP = {COMMITTED: "group-offsets", EARLIEST: "earliest-offset", LATEST: "latest-offset"}
MAX_MESSAGE_BYTES = 8 << 20
_KEPT_CHARACTERS = 1_000
"""Characters of a message that is too long which the rejected row contains."""

_CHANGE = "kafka:change"
_HEADER = "kafka:header:"
_UTF8 = "DECODE(CAST({} AS BYTES), 'UTF-8')"
METADATA: Mapping[str, str] = {
    "kafka:key": _UTF8.format("`message_key`"),
    # text of UTC, which is the time zone of the session
    "kafka:timestamp": "CAST(`message_time` AS STRING)",
    "kafka:topic": "`topic`",
    "kafka:partition": "CAST(`partition` AS STRING)",
    "kafka:offset": "CAST(`offset` AS STRING)",
}
"""SQL of what a column may be filled from, besides the keys of the JSON object."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic, and where a first run begins in it.

    ``servers`` is a comma-separated list of ``host:port``. ``start`` is ``committed`` (the group's
    offsets, or the beginning of the topic if there are none), ``earliest``, ``latest``, or a time
    in UTC ms (the first message of that time or later). ``properties`` are settings of Kafka's
    client. Messages of more than ``max_bytes`` are rejected. ``discovery_ms`` is how often a
    running job looks for new partitions, which it reads from their beginning.

    Raises
    ------
    ConfigurationError
        For an invalid topic name, an address that is not ``host:port``, or an unknown start.
    """

    servers: str
    topic: str
    group: str
    columns: tuple[InputColumn, ...]
    format: str = JSON
    start: str | int = COMMITTED
    properties: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = MAX_MESSAGE_BYTES
    discovery_ms: int = DISCOVERY_MS

    def __post_init__(self) -> None:
        # the name is also that of a folder
        if not re.fullmatch(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", self.topic):
            raise ConfigurationError(
                f"topic {self.topic!r}: expected letters, digits, dots, underscores and dashes"
            )
        check_brokers("--kafka", self.servers)
        if isinstance(self.start, str) and self.start not in _STARTUP:
            raise ConfigurationError(
                f"--start {self.start!r}: expected {', '.join(_STARTUP)}, or a time"
            )


def topic_columns(
    source: EventSource, mapping: Mapping[str, str], message_format: str = JSON
) -> tuple[InputColumn, ...]:
    """Return the columns of a topic: keys of the JSON object, by their names unless mapped.

    A mapping to ``kafka:key``, ``kafka:timestamp``, ``kafka:header:NAME``, ``kafka:partition``,
    ``kafka:offset`` or ``kafka:topic`` takes the value from the message itself. The retraction
    column of a source is the kind of the change where the messages are envelopes of Debezium.

    Raises
    ------
    ConfigurationError
        For an unknown column, a column that JSON cannot fill, an unknown part of a message, or
        envelopes without a retraction column.
    """
    check_mapping(source, mapping)
    fields = dict(mapping)
    if message_format == DEBEZIUM:
        fields[check_changes(f"--format {DEBEZIUM}", source, mapping)] = _CHANGE
    columns = []
    for name, kind in source.schema.items():
        check_readable(name, TEXT, kind)
        field_name = fields.get(name, name)
        header = field_name.startswith(_HEADER) and field_name != _HEADER
        is_valid = field_name in METADATA or header or name not in mapping
        if field_name.startswith("kafka:") and not is_valid:
            raise ConfigurationError(
                f"--column {name}={field_name}: expected one of: {', '.join(METADATA)}, "
                f"{_HEADER}NAME"
            )
        columns.append(InputColumn(name, field_name, 0, TEXT, kind.text != "string"))
    return tuple(columns)


def kafka_scan(name: str, topic: KafkaTopic) -> InputScan:
    """Return the scan of a topic. Offsets are part of the job's checkpoints."""
    of_message = [c for c in topic.columns if c.field.startswith("kafka:") and c.field != _CHANGE]
    flag = next((c for c in topic.columns if c.field == _CHANGE), None)
    value_columns = [c for c in topic.columns if c not in of_message and c is not flag]
    kept = [quote(f"m_{column.name}") for column in of_message]
    lines = f"{name}_lines"
    cells = [cell(column, quote(f"m_{column.name}")) for column in of_message]
    views = [*_lines(name, lines, topic, of_message)]
    if topic.format == DEBEZIUM:
        assert flag is not None, "topic_columns adds it"
        cells.append(cell(flag, quote("kind")))
        views += _change_views(name, lines, value_columns, kept, cells, flag.bare)
    else:
        text = line_text(name, lines, kept)
        views += [text, *json_cells(name, value_columns, text[0], kept, cells, first=_NO_VALUE)]
    return InputScan(_table(name, topic, of_message), tuple(views))


def _table(name: str, topic: KafkaTopic, of_message: Sequence[InputColumn]) -> str:
    keyed = any(column.field == "kafka:key" for column in of_message)
    options = {
        "connector": "kafka",
        # by default also messages of transactions that were aborted
        "properties.isolation.level": "read_committed",
        **{f"properties.{key}": value for key, value in topic.properties.items()},
        "properties.bootstrap.servers": topic.servers,
        "properties.group.id": topic.group,
        "properties.auto.offset.reset": "earliest",
        "topic": topic.topic,
        "scan.startup.mode": _STARTUP.get(str(topic.start), "timestamp"),
        "scan.topic-partition-discovery.interval": f"{topic.discovery_ms} ms",
        "value.format": "raw",
    }
    if not isinstance(topic.start, str):
        options["scan.startup.timestamp-millis"] = str(topic.start)
    if keyed:
        options["key.format"] = "raw"
        options["key.fields"] = "message_key"
        options["value.fields-include"] = "EXCEPT_KEY"
    declared = "`message_key` STRING, " if keyed else ""
    # what a table declares is read, used or not
    if any(column.field == "kafka:timestamp" for column in of_message):
        declared += "`message_time` TIMESTAMP_LTZ(3) NOT NULL METADATA FROM 'timestamp' VIRTUAL, "
    if any(column.field.startswith(_HEADER) for column in of_message):
        declared += "`headers` MAP<STRING NOT NULL, BYTES NOT NULL> NOT NULL METADATA VIRTUAL, "
    return (
        f"CREATE TEMPORARY TABLE {quote(name)} (`message` STRING, {declared}"
        "`topic` STRING NOT NULL METADATA VIRTUAL, "
        "`partition` INT NOT NULL METADATA VIRTUAL, "
        "`offset` BIGINT NOT NULL METADATA VIRTUAL, "
        "`origin` AS CONCAT('kafka:', `topic`, '/', CAST(`partition` AS STRING), '@', "
        f"CAST(`offset` AS STRING))) WITH ({sql_options(options)})"
    )


def _lines(
    name: str, lines: str, topic: KafkaTopic, of_message: Sequence[InputColumn]
) -> list[tuple[str, str]]:
    """Return the views up to ``lines``: a text, its origin, and what columns take from the
    message."""
    # the header of a schema registry is a zero byte and four bytes of the schema's number; decoded
    # as Latin-1, a byte is a character
    latin = "DECODE(CAST(`message` AS BYTES), 'ISO-8859-1')"
    body = "ENCODE(SUBSTRING(`latin`, 6), 'ISO-8859-1')"
    text = "DECODE(`body`, 'UTF-8')"
    # a body of other bytes stays as it is, and is unreadable
    unframed = f"WHEN `body` IS NOT NULL AND ENCODE({text}, 'UTF-8') = `body` THEN {text}"
    long = f"CHAR_LENGTH(`message`) > {topic.max_bytes // 4}"
    cut = (
        f"CONCAT({literal(CUT_LINE)}, CAST(CHAR_LENGTH({latin}) AS STRING), ' bytes] ', "
        f"REGEXP_EXTRACT(`message`, '(?s)^.{{0,{_KEPT_CHARACTERS}}}', 0))"
    )
    values = [
        f"{once(_message_value(column))} AS {quote(f'm_{column.name}')}" for column in of_message
    ]
    kept = "".join(f", {quote(f'm_{column.name}')}" for column in of_message)
    framed = f"{name}_framed"
    bodies = f"{name}_bodies"
    return [
        (
            framed,
            "SELECT `message`, `origin`, "
            + once(f"CASE WHEN `message` LIKE '\x00%' THEN {latin} END")
            + f" AS `latin`{''.join(f', {value}' for value in values)} FROM {quote(name)}",
        ),
        (
            bodies,
            f"SELECT `message`, `origin`, {once(body)} AS `body`{kept} FROM {quote(framed)}",
        ),
        (
            lines,
            "SELECT "
            + once(
                f"CASE WHEN {long} AND CHAR_LENGTH({latin}) > {topic.max_bytes} THEN {cut} "
                f"{unframed} ELSE `message` END"
            )
            + f" AS `line`, `origin`{kept} FROM {quote(bodies)}",
        ),
    ]


def _message_value(column: InputColumn) -> str:
    if column.field.startswith(_HEADER):
        header = f"`headers`[{literal(column.field.removeprefix(_HEADER))}]"
        return f"DECODE({header}, 'UTF-8')"
    return METADATA[column.field]


_NO_VALUE = f"WHEN `raw` IS NULL THEN '{UNREADABLE}: the message has no value' "
_BEFORE = f"`change` IN ({', '.join(map(literal, RETRACTED_KINDS))})"
_SIDES = ("payload.before", "payload.after", "before", "after")


def _change_views(
    name: str,
    lines: str,
    columns: Sequence[InputColumn],
    kept: Sequence[str],
    cells: Sequence[str],
    flag: bool,
) -> list[tuple[str, str]]:
    """Return the views from lines to cells, a row for each change of an envelope.

    ``flag``: the retraction column is a Bool, and not the kind of the change.
    """
    text = line_text(name, lines, kept)
    others = "".join(f", {column}" for column in kept)
    # with the schema in each message, the envelope is its payload
    op = "COALESCE(JSON_VALUE(`raw`, 'lax $.payload.op'), JSON_VALUE(`raw`, 'lax $.op'))"
    wrapped = "JSON_EXISTS(`raw`, 'lax $.payload.op')"
    opened = (
        f"SELECT `line`, `raw`, `origin`{others}, {once(op)} AS `op`, {once(wrapped)} AS `wrapped` "
        # on a compacted topic, a deletion is followed by a message without a value
        f"FROM {quote(text[0])} WHERE `raw` IS NOT NULL"
    )
    changes = (
        "CASE `op` WHEN 'c' THEN ARRAY['+I'] WHEN 'r' THEN ARRAY['+I'] "
        "WHEN 'u' THEN ARRAY['-U', '+U'] WHEN 'd' THEN ARRAY['-D'] ELSE ARRAY['??'] END"
    )
    listed = (
        f"SELECT `line`, `raw`, `origin`{others}, `op`, `wrapped`, {changes} AS `changes` "
        f"FROM {quote(f'{name}_opened')}"
    )
    kind = f"CASE WHEN {_BEFORE} THEN 'true' ELSE 'false' END" if flag else "`change`"
    split = (
        f"SELECT `line`, `raw`, `origin`{others}, `op`, `change`, {kind} AS `kind`, "
        f"CASE WHEN `wrapped` THEN 'payload.' ELSE '' END || "
        f"CASE WHEN {_BEFORE} THEN 'before' ELSE 'after' END AS `side` "
        f"FROM {quote(f'{name}_listed')} CROSS JOIN UNNEST(`changes`) AS t(`change`)"
    )
    image = _of_side(lambda side: f"JSON_QUERY(`raw`, 'lax $.{side}')")
    broken = (
        f"WHEN `change` = '??' THEN CONCAT('{UNREADABLE}: expected an envelope of Debezium with "
        "op c, r, u or d, got op ', COALESCE(SUBSTRING(`op`, 1, 20), 'null')) "
        f"WHEN ({image}) IS NULL OR ({image}) IS NOT JSON OBJECT THEN CONCAT('{UNREADABLE}: the "
        "envelope has no row in \"', `side`, '\"', CASE WHEN `side` LIKE '%before' THEN ': the "
        "table must log old rows completely (PostgreSQL: REPLICA IDENTITY FULL)' ELSE '' END) "
    )
    return [
        text,
        (f"{name}_opened", opened),
        (f"{name}_listed", listed),
        (f"{name}_changes", split),
        *json_cells(
            name,
            columns,
            f"{name}_changes",
            [*kept, "`side`", "`kind`"],
            cells,
            first="",
            last=broken,
            read=lambda function, key: _of_side(
                lambda side: f"{function}(`raw`, {json_path(f'$.{side}', key)})"
            ),
        ),
    ]


def _of_side(read: Callable[[str], str]) -> str:
    """Return SQL that reads the old or the new row of an envelope; a path cannot be computed."""
    cases = " ".join(f"WHEN '{side}' THEN {read(side)}" for side in _SIDES)
    return f"CASE `side` {cases} END"
