"""The Ray cluster that the operator has started: softcue connects to it and never starts one."""

from __future__ import annotations

import logging
import socket

from softcue.errors import ConfigurationError, MissingExtraError

START_COMMAND = "ray start --head --node-ip-address 127.0.0.1 --include-dashboard=false"
CONNECT_SECONDS = 5.0


def connect(address: str) -> None:
    """Connect to a running cluster. Ray's own messages become warnings of the logger `ray`.

    Example:
        connect("auto")  # the cluster of this machine
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", "ray") from error
    for ray_logger in map(logging.getLogger, ("ray", "ray.serve")):
        ray_logger.handlers, ray_logger.propagate = [], True
        ray_logger.setLevel(logging.WARNING)
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            setting="ray_address",
            got=address,
            expected="the address of a running Ray cluster",
            fix=f"start one: {START_COMMAND}",
        ) from error
