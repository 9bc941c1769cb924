"""``DistributedStrategy``: the strategies of ``tf.distribute``, with arguments checked first.

TensorFlow waits, often for ever, for hosts that are not there, and takes device names that
do not exist. Here both are errors that name the host or device.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paimon_features.core.errors import ConfigurationError, SetupError, UnknownNameError

CONNECT_TIMEOUT_S = 60.0
"""How long hosts may take to start listening."""


class DistributedStrategy:
    """Makes the strategies of ``tf.distribute``."""

    @staticmethod
    def create_mirrored_strategy(devices: Sequence[str] | None = None) -> tf.distribute.Strategy:
        """Return the strategy of model copies on devices of this process, updated together.

        Parameters
        ----------
        devices
            Logical devices such as ``"GPU:0"`` or ``"/cpu:1"``; all GPUs by default, or the
            CPU where there is none.

        Raises
        ------
        ConfigurationError
            For an empty list, or a device that is named twice.
        UnknownNameError
            For a device that is not there; the message names those that are.
        """
        if devices is None:
            return tf.distribute.MirroredStrategy()
        wanted = [_device(name) for name in devices]
        if not wanted or len(set(wanted)) != len(wanted):
            raise ConfigurationError(f"devices={list(devices)}: expected one or more, each once")
        available = [_device(device.name) for device in tf.config.list_logical_devices()]
        for name in wanted:
            if name not in available:
                raise UnknownNameError.of("logical device", name, available)
        return tf.distribute.MirroredStrategy(wanted)

    @staticmethod
    def create_multi_worker_mirrored_strategy() -> tf.distribute.Strategy:
        """Return the strategy of model copies on devices of several processes.

        The processes and this one's place among them are in the environment variable
        ``TF_CONFIG``: ``{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker",
        "index": 0}}``. Without it this process is alone. Call it before anything else of
        TensorFlow; it waits for the others.

        Raises
        ------
        ConfigurationError
            If ``TF_CONFIG`` is no JSON of that kind.
        """
        if text := os.environ.get("TF_CONFIG"):
            _check_tf_config(text)
        return tf.distribute.MultiWorkerMirroredStrategy()

    @staticmethod
    def create_tpu_strategy(tpu_address: str) -> tf.distribute.Strategy:
        """Initialise a TPU, and return the strategy of model copies on its cores.

        Parameters
        ----------
        tpu_address
            ``"local"`` on a TPU VM, ``grpc://host:port``, or the name of a Cloud TPU. A snapshot
            reader's dataset runs Python and therefore needs ``"local"``.

        Raises
        ------
        ConfigurationError
            For an empty address.
        SetupError
            If there is no TPU, or nobody listens there.
        """
        if not tpu_address:
            raise ConfigurationError(
                "tpu_address is empty: give 'local', grpc://host:port, or the name of a TPU"
            )
        if tpu_address.startswith("grpc://"):
            _wait_for(tpu_address.removeprefix("grpc://"), "the TPU")
        elif tpu_address == "local" and not tf.config.list_physical_devices("TPU"):
            raise SetupError(
                "tpu_address='local': this machine has no TPU that TensorFlow sees; run on a "
                "TPU VM with the TPU build of TensorFlow, or name another address"
            )
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu_address)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
            raise SetupError(f"the TPU {tpu_address!r} cannot be used: {error}") from error
        return tf.distribute.TPUStrategy(resolver)

    @staticmethod
    def create_parameter_server_strategy(
        worker_hosts: Sequence[str], ps_hosts: Sequence[str], worker_index: int
    ) -> tf.distribute.Strategy:
        """Variables on parameter servers, steps on workers, driven by this process.

        Workers and parameter servers are ``tf.distribute.Server`` processes on their hosts
        that were started with the same lists; this waits until they listen.

        Parameters
        ----------
        worker_hosts, ps_hosts
            Addresses ``host:port``, each once.
        worker_index
            The worker that the strategy's cluster resolver reports: from 0,
            less than ``len(worker_hosts)``.

        Raises
        ------
        ConfigurationError
            For lists that are empty or name an address twice, an address without a port, an
            index that is none of a worker.
        SetupError
            If a host does not listen.
        """
        for name, hosts in (("worker_hosts", worker_hosts), ("ps_hosts", ps_hosts)):
            if isinstance(hosts, str) or not hosts:
                raise ConfigurationError(f"{name}={hosts!r}: expected a list of host:port")
        addresses = [*worker_hosts, *ps_hosts]
        for address in addresses:
            _host_and_port(address)
        if len(set(addresses)) != len(addresses):
            raise ConfigurationError(f"an address is named twice: {', '.join(addresses)}")
        if not 0 <= worker_index < len(worker_hosts):
            raise ConfigurationError(
                f"worker_index={worker_index}: expected 0 to {len(worker_hosts) - 1}, as there "
                f"are {len(worker_hosts)} worker hosts"
            )
        for address in addresses:
            _wait_for(address, "the TensorFlow server")
        spec = tf.train.ClusterSpec({"worker": list(worker_hosts), "ps": list(ps_hosts)})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="worker", task_id=worker_index, rpc_layer="grpc"
        )
        return tf.distribute.ParameterServerStrategy(resolver)


def _device(name: str) -> str:
    """``CPU:0`` for all the ways to name a device of this process.

    >>> [_device(name) for name in ("cpu:0", "/gpu:1", "/device:CPU:0")]
    ['CPU:0', 'GPU:1', 'CPU:0']
    """
    kind, _, number = name.rpartition("/")[2].removeprefix("device:").partition(":")
    return f"{kind.upper()}:{number or 0}"


def _check_tf_config(text: str) -> None:
    example = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
    try:
        config: Any = json.loads(text)
        hosts = config["cluster"][config["task"]["type"]]
        index = int(config["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"TF_CONFIG={text!r}: expected JSON like {example}") from error
    if not 0 <= index < len(hosts):
        raise ConfigurationError(
            f"TF_CONFIG says that this is {config['task']['type']} {index}, and names "
            f"{len(hosts)} of them; they count from 0"
        )
    for hosts in config["cluster"].values():
        for address in hosts:
            _host_and_port(address)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"address {address!r}: expected host:port")
    return host, int(port)


def _wait_for(address: str, what: str) -> None:
    """Until someone listens there; TensorFlow itself would wait without a word."""
    host, port = _host_and_port(address)
    until = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, port), timeout=max(CONNECT_TIMEOUT_S, 0.1)).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise SetupError(
                    f"{what} at {address} (nobody listened there for {CONNECT_TIMEOUT_S:g} s: "
                    f"{error})"
                ) from error
        time.sleep(min(0.5, CONNECT_TIMEOUT_S))
