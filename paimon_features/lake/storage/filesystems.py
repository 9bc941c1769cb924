"""Arrow's file system for a URI, from options and the environment.

Options override the environment. They have Paimon's names, so that a catalog's settings can be
passed unchanged (``fs.s3.endpoint``), or the same without the prefix (``endpoint``). The
environment's names are those of HybridBackend and of the AWS tools.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from paimon_features.core.errors import ConfigurationError, MissingExtraError
from paimon_features.core.installation.jars import CheckpointStore

REQUEST_TIMEOUT_S = 20
"""The silence of a store after which a request is repeated. Arrow's client waits so long for the
rest of a reply whose connection was cut, too."""
S3_SCHEMES = ("s3", "s3a", "s3n")
HDFS_SCHEMES = ("hdfs", "viewfs")
SCHEMES = (*S3_SCHEMES, "oss", *HDFS_SCHEMES)

_NAMES: Mapping[str, tuple[str, ...]] = {
    "access_key": ("accessKeyId", "access-key", "access.key", "access_key"),
    "secret_key": ("accessKeySecret", "secret-key", "secret.key", "secret_key"),
    "session_token": ("securityToken", "session-token", "session.token", "session_token"),
    "endpoint": ("endpoint",),
    "region": ("region",),
    "path_style": ("path-style-access", "path.style.access"),
    "addressing_style": ("addressing-style",),
    "use_https": ("use-https",),
    "connect_timeout_s": ("connect-timeout-s",),
    "request_timeout_s": ("request-timeout-s",),
    "attempts": ("attempts",),
    "user": ("user",),
    "kerb_ticket": ("kerberos-ticket",),
    "replication": ("replication",),
}
_S3_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "access_key": ("AWS_ACCESS_KEY_ID",),
    "secret_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "endpoint": ("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "addressing_style": ("S3_ADDRESSING_STYLE",),
    "use_https": ("S3_USE_HTTPS",),
}
_OSS_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "access_key": ("OSS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
    "secret_key": ("OSS_ACCESS_KEY_SECRET", "AWS_SECRET_ACCESS_KEY"),
    "session_token": ("OSS_SESSION_TOKEN", "AWS_SESSION_TOKEN"),
    "endpoint": ("OSS_ENDPOINT", "S3_ENDPOINT"),
    "region": ("OSS_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"),
    "addressing_style": ("S3_ADDRESSING_STYLE",),
    "use_https": ("S3_USE_HTTPS",),
}
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "s3": ("fs.s3.", "fs.s3a.", "s3.", "s3a.", ""),
    "oss": ("fs.oss.", "oss.", ""),
    "hdfs": ("fs.hdfs.", "hdfs.", ""),
}


def settings(address: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a URI from options and environment, by short names.

    Raises
    ------
    ConfigurationError
        For an unknown option, such as a misspelt one.
    """
    scheme = _family(address)
    short_names = {
        prefix + spelling: name
        for prefix in reversed(_PREFIXES[scheme])
        for name, spellings in _NAMES.items()
        for spelling in spellings
    }
    unknown = [option for option in options if option not in short_names]
    if unknown:
        raise ConfigurationError(
            f"warehouse {address!r}: unknown option {unknown[0]!r}; expected one of: "
            + ", ".join(spellings[0] for spellings in _NAMES.values())
            + f" (also as {_PREFIXES[scheme][0]}endpoint, as Paimon has them)"
        )
    environment = {"s3": _S3_ENVIRONMENT, "oss": _OSS_ENVIRONMENT}.get(scheme, {})
    from_environment = {
        name: value
        for name, variables in environment.items()
        if (value := next(filter(None, map(os.environ.get, variables)), None))
    }
    return {
        **from_environment,
        **{short_names[option]: str(value) for option, value in options.items()},
    }


def check_warehouse(
    warehouse: str, options: Mapping[str, str], side_folder: str | os.PathLike[str] | None = None
) -> None:
    """Check the settings of a warehouse, without a connection to it.

    Raises
    ------
    ConfigurationError
        For a URI of an unknown scheme, an unknown option, values that no store accepts, or
        settings of a remote warehouse for one that is a folder.
    """
    if urlsplit(warehouse).scheme in ("", "file"):
        if options or side_folder is not None:
            raise ConfigurationError(
                f"warehouse {warehouse!r} is a folder; options and side_folder apply to remote "
                f"warehouses"
            )
    elif _family(warehouse) != "hdfs":
        s3_arguments(warehouse, settings(warehouse, options))


def make_filesystem(address: str, found: Mapping[str, str], attempts: int = 1) -> pafs.FileSystem:
    """Return the file system of a URI by its ``settings``; only HDFS connects immediately.

    ``attempts`` is the number of attempts per request of S3 and OSS.

    Raises
    ------
    ConfigurationError
        For invalid settings, or a missing Hadoop installation.
    """
    scheme = _family(address)
    if scheme == "hdfs":
        return _hdfs(address, found)
    return pafs.S3FileSystem(**s3_arguments(address, found), retry_strategy=_strategy(attempts))


def s3_arguments(address: str, found: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of ``pyarrow.fs.S3FileSystem`` for the ``settings`` of a URI.

    >>> s3_arguments("s3://b/w", {"endpoint": "minio:9000", "use_https": "0"})["scheme"]
    'http'

    Raises
    ------
    ConfigurationError
        For one key without the other, an unknown addressing style, or OSS without an endpoint.
    """
    if ("access_key" in found) != ("secret_key" in found):
        present, lacking = ("id", "secret") if "access_key" in found else ("secret", "id")
        raise ConfigurationError(
            f"warehouse {address!r}: the access key's {present} is set and its {lacking} is not; "
            "set both (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or options), or none"
        )
    of_oss = _family(address) == "oss"
    endpoint = found.get("endpoint")
    if of_oss and not endpoint:
        raise ConfigurationError(
            f"warehouse {address!r}: OSS requires an endpoint, such as "
            f"oss-cn-hangzhou.aliyuncs.com "
            "for example: set OSS_ENDPOINT or the option fs.oss.endpoint"
        )
    arguments: dict[str, Any] = {
        "scheme": "https",
        "connect_timeout": float(found.get("connect_timeout_s", 5)),
        "request_timeout": float(found.get("request_timeout_s", REQUEST_TIMEOUT_S)),
        "force_virtual_addressing": _virtual(address, found, of_oss),
    }
    if endpoint:
        stated, _, host = endpoint.rpartition("://")
        arguments["endpoint_override"] = host.rstrip("/")
        arguments["scheme"] = stated or "https"
    if "use_https" in found:
        arguments["scheme"] = "https" if _flag(address, "use-https", found["use_https"]) else "http"
    if "access_key" in found:
        for name in ("access_key", "secret_key", "session_token"):
            arguments[name] = found.get(name)
        # with explicit keys, no lookup of a metadata service that may not exist
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    # without a region Arrow queries AWS, which other stores do not support
    region = found.get("region") or ("us-east-1" if endpoint else None)
    if region:
        arguments["region"] = region
    return arguments


def paimon_options(address: str, found: Mapping[str, str]) -> dict[str, str]:
    """Return the ``settings`` of a URI as options of Paimon's catalog in Java, secrets among them.

    >>> paimon_options("s3://b/w", {"endpoint": "minio:9000", "use_https": "0"})
    {'s3.endpoint': 'http://minio:9000', 's3.path.style.access': 'true'}

    Raises
    ------
    ConfigurationError
        For OSS, whose jar is not among those of this version, and as ``s3_arguments``.
    """
    scheme = _family(address)
    if scheme == "hdfs":
        return {}  # Hadoop's own configuration
    if scheme == "oss" or urlsplit(address).scheme == "s3n":
        raise ConfigurationError(
            f"Flink cannot open the warehouse {address!r}: expected a folder, s3:// or hdfs://. "
            "OSS has an S3 interface: s3://bucket/path with its endpoint, and "
            "addressing-style = virtual"
        )
    arguments = s3_arguments(address, found)
    options = {}
    if host := arguments.get("endpoint_override"):
        options["s3.endpoint"] = f"{arguments['scheme']}://{host}"
        virtual = arguments["force_virtual_addressing"]
        options["s3.path.style.access"] = "false" if virtual else "true"
    if "region" in found:
        options["s3.endpoint.region"] = found["region"]
    for name, option in (
        ("access_key", "s3.access-key"),
        ("secret_key", "s3.secret-key"),
        ("session_token", "s3.session.token"),
    ):
        if found.get(name):
            options[option] = found[name]
    return options


_VARIABLES: Mapping[str, str] = {
    "s3.access-key": "AWS_ACCESS_KEY_ID",
    "s3.secret-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session.token": "AWS_SESSION_TOKEN",
}


def checkpoint_store(address: str, options: Mapping[str, str]) -> CheckpointStore:
    """Return how Flink's own file system opens a folder ``s3://``.

    >>> store = checkpoint_store("s3://b/w", {"endpoint": "http://minio:9000",
    ...                          "access-key": "a", "secret-key": "b"})
    >>> store.options["s3.endpoint"]
    'http://minio:9000'
    >>> store.variables
    {'AWS_ACCESS_KEY_ID': 'a', 'AWS_SECRET_ACCESS_KEY': 'b'}

    Raises
    ------
    ConfigurationError
        As ``settings`` and ``s3_arguments``.
    """
    store_options = paimon_options(address, settings(address, options))
    return CheckpointStore(
        address,
        {
            **{name: value for name, value in store_options.items() if name not in _VARIABLES},
            # otherwise each file that is written costs a request that deletes the markers of the
            # folders above it, which servers that keep objects in folders (versitygw) refuse
            "s3.directory.marker.retention": "keep",
        },
        {_VARIABLES[name]: value for name, value in store_options.items() if name in _VARIABLES},
    )


def _virtual(address: str, found: Mapping[str, str], of_oss: bool) -> bool:
    """Return True if the bucket is part of the host name; False leaves it to Arrow: it is then,
    too, for AWS itself, and part of the path for any other endpoint."""
    if "path_style" in found:
        return not _flag(address, "path-style-access", found["path_style"])
    style = found.get("addressing_style", "auto").lower()
    if style not in ("auto", "path", "virtual"):
        raise ConfigurationError(
            f"warehouse {address!r}: addressing style {style!r}: expected path, virtual or auto"
        )
    # OSS supports only virtual
    return style == "virtual" or (style == "auto" and of_oss)


def _hdfs(address: str, found: Mapping[str, str]) -> pafs.FileSystem:
    parts = urlsplit(address)
    # no port: a name service of the Hadoop configuration, as is what viewfs mounts
    named = parts.scheme == "viewfs" or not parts.port
    arguments: dict[str, Any] = {
        "host": "default" if named else parts.hostname,
        "port": 0 if named else parts.port,
        "replication": int(found.get("replication", 3)),
    }
    arguments |= {name: found[name] for name in ("user", "kerb_ticket") if name in found}
    try:
        return pafs.HadoopFileSystem(**arguments)
    except OSError as error:
        raise ConfigurationError(
            f"warehouse {address!r}: Arrow cannot load Hadoop: {str(error).splitlines()[0]}. It "
            "requires Java (JAVA_HOME), libhdfs (HADOOP_HOME or ARROW_LIBHDFS_DIR) and Hadoop's "
            "jars "
            "(CLASSPATH=$(hadoop classpath --glob)); or pass a file system: filesystem="
        ) from error


def _family(address: str) -> str:
    scheme = urlsplit(address).scheme
    if scheme in S3_SCHEMES:
        return "s3"
    if scheme in HDFS_SCHEMES:
        return "hdfs"
    if scheme == "oss":
        return scheme
    raise ConfigurationError(
        f"warehouse {address!r}: expected a folder, or a URI of {', '.join(SCHEMES)}; for "
        "another file system pass one of Arrow or fsspec: filesystem="
    )


def _strategy(attempts: int) -> Any:
    return pafs.AwsStandardS3RetryStrategy(max_attempts=attempts)


def _flag(address: str, name: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ConfigurationError(f"warehouse {address!r}: {name} is {text!r}: expected 1 or 0")


def of_arrow(filesystem: Any) -> pafs.FileSystem:
    """Return a file system of Arrow, or a wrapped one of fsspec.

    Raises
    ------
    ConfigurationError
        For anything else.
    """
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    try:
        from fsspec import AbstractFileSystem
    except ImportError:
        raise MissingExtraError(
            f"filesystem={type(filesystem).__name__}: expected a pyarrow.fs.FileSystem; for one of "
            "fsspec its package is required: pip install fsspec"
        ) from None
    if isinstance(filesystem, AbstractFileSystem):
        return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    raise ConfigurationError(
        f"filesystem={type(filesystem).__name__}: expected one of pyarrow.fs or of fsspec"
    )
