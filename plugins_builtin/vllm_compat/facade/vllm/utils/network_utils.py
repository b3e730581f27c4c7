"""Addresses and ports of this machine."""

from __future__ import annotations

import ipaddress
import socket

from .. import envs

__all__ = [
    "get_distributed_init_method",
    "get_ip",
    "get_loopback_ip",
    "get_open_port",
    "get_open_ports_list",
    "get_tcp_uri",
    "is_valid_ipv6_address",
    "join_host_port",
    "split_host_port",
]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")


def get_ip() -> str:
    """``VLLM_HOST_IP``, or else the address from which others are reached; ``0.0.0.0``: none is."""
    if envs.VLLM_HOST_IP:
        return str(envs.VLLM_HOST_IP)
    # No packet is sent by connecting a socket of this kind; it only learns its own address.
    for family, other in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as found:
                found.connect((other, 80))
                return str(found.getsockname()[0])
        except OSError:
            continue
    return "0.0.0.0"


def get_loopback_ip() -> str:
    return "127.0.0.1"


def is_valid_ipv6_address(address: str) -> bool:
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if is_valid_ipv6_address(host) else f"{host}:{port}"


def split_host_port(host_port: str) -> tuple[str, int]:
    host, _, port = host_port.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def get_tcp_uri(ip: str, port: int) -> str:
    return f"tcp://{join_host_port(ip, port)}"


def get_distributed_init_method(ip: str, port: int) -> str:
    return get_tcp_uri(ip, port)


def get_open_port() -> int:
    """One that nobody listens at now."""
    return get_open_ports_list(1)[0]


def get_open_ports_list(count: int = 5) -> list[int]:
    """All held open until the last one is found, so that they differ."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in held:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()
