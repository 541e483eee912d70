"""`wal coordinator ROOT`, `wal node ROOT` and `wal cluster …`: the processes of a cluster, and the commands of its operator."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wal.api.factory import with_absolute_paths
from wal.errors import InvalidArgumentError, WALError
from wal.location import parse_location
from wal.operate.cli.options import access_from, add_options, settings_from
from wal.operate.cli.output import seconds, whole
from wal.operate.cli.standalone import loop_factory
from wal.operate.inspect.rows import VERSION, json_of
from wal.runtime.secret import Secret
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.requests.cluster import ClusterStatus
    from wal.rpc.connection import Connection
    from wal.serve.access import Access

_ROOT: Final = "the root of the cluster in etcd: etcd://HOST[:PORT]/PATH"
TTL_S: Final = 10.0
"""The lifetime of a session: it outlives an election of etcd's."""
_OF_NODE: Final = ("address", "healthy", "drains", "pchannels", "trouble")
_STATES: Final = ("", "UNINITIALIZED", "ASSIGNING", "ASSIGNED", "UNAVAILABLE")
_EPILOG: Final = """\
A flag overrides a variable of the environment, and a variable overrides the
file. WAL_SERVER_TOKEN is the token that the servers of a cluster share, and
that clients may show; --token-file has tokens with fewer rights for clients.
WAL_PULSAR_TOKEN is the token for Pulsar."""
_COORDINATOR: Final = """\
Takes part in coordinating a cluster, until SIGTERM or SIGINT. Of all
coordinators one leads: it decides which node has which part of the log, and
owns the directory of vchannels and the broadcasts. The others wait, and name
the leader to those who ask.

The first coordinator of a root saves which log the cluster serves."""
_NODE: Final = """\
Serves the pchannels that the leading coordinator gives to this node, until
SIGTERM or SIGINT. Then the leader gives them to other nodes, calls under way
are finished, and the process exits with 0. A node that loses its lease in
etcd exits with 3."""


def fill_coordinator(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal coordinator`."""
    _fill_process(parser, _COORDINATOR)
    parser.add_argument("--log", metavar="LOCATION", help="the log on Pulsar: pulsar://HOST:PORT/TENANT/NAMESPACE")
    parser.add_argument("--expected-nodes", metavar="N", type=whole(1), help="how many nodes the first assignment waits for")
    add_options(parser)
    parser.set_defaults(run=_coordinator)


def fill_node(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal node`."""
    _fill_process(parser, _NODE)
    add_options(parser)
    parser.set_defaults(run=_node)


def _fill_process(parser: argparse.ArgumentParser, description: str) -> None:
    parser.description, parser.epilog, parser.usage = description, _EPILOG, "%(prog)s [OPTION]... ROOT"
    parser.add_argument("root", metavar="ROOT", help=_ROOT)
    parser.add_argument(
        "--session-ttl",
        metavar="SECONDS",
        type=seconds(0.1),
        default=TTL_S,
        help="after how long without a word to etcd this process is taken for gone (default 10)",
    )


def fill_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the orders of `wal cluster`."""
    orders = parser.add_subparsers(title="orders", required=True, metavar="ORDER")
    for name, text in (
        ("status", "which node has which pchannel"),
        ("drain", "has a node give its pchannels up, and get none"),
        ("undrain", "lets a node have pchannels again"),
        ("pause", "moves nothing, but for what is on no node"),
        ("resume", "balances again"),
    ):
        order = orders.add_parser(name, help=text, allow_abbrev=False)
        order.add_argument("root", metavar="ROOT", help=f"{_ROOT}, or wal://COORDINATOR[,COORDINATOR…]")
        if name in ("drain", "undrain"):
            order.add_argument("node", metavar="NODE", help="the node's address, or its number as `status` shows it")
        if name == "status":
            order.add_argument("--json", action="store_true", help="the same as JSON")
            order.add_argument("--wait", action="store_true", help="returns when every pchannel is ASSIGNED and no history is left")
            order.add_argument("--timeout", metavar="SECONDS", type=seconds(), default=60.0, help="how long --wait waits (default 60)")
        order.set_defaults(run=_order, parser=order, order=name)


def _coordinator(arguments: argparse.Namespace) -> int:
    from wal.operate.processes.coordinator import ClusterCoordinator

    options = {"log": arguments.log, "expected_nodes": arguments.expected_nodes}
    return _serve(arguments, partial(ClusterCoordinator, **options), "a coordinator")


def _node(arguments: argparse.Namespace) -> int:
    from wal.operate.processes.node import ClusterNode

    return _serve(arguments, ClusterNode, "a node", exits_at_once=True)


def _serve(arguments: argparse.Namespace, make: Callable[..., Any], what: str, *, exits_at_once: bool = False) -> int:
    """Serves the process that `make` returns. Set `exits_at_once` if threads of a failed process may block its end."""
    from wal.operate.cli.serving import Served, serve
    from wal.operate.processes.opening import check_root

    root, settings = check_root(arguments.root), with_absolute_paths(settings_from(arguments))

    async def opened(access: Access) -> Served:
        process = make(root, settings, access, ttl_s=arguments.session_ttl)
        await process.open()
        served: Served = process
        return served

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(serve(opened, lambda: access_from(arguments), f"{what} of the cluster at {root}"))
        if code and exits_at_once:
            logging.shutdown()
            os._exit(code)
        return code


def _order(arguments: argparse.Namespace) -> int:
    return asyncio.run(_ordered(arguments))


async def _ordered(arguments: argparse.Namespace) -> int:
    from wal.requests.cluster import DrainNode, PauseBalancer

    leader = await _leader_of(arguments.root)
    try:
        match arguments.order:
            case "status":
                return await _status(leader, arguments)
            case "drain" | "undrain":
                server_id = await _server_id(leader, arguments.node)
                await leader.submit(DrainNode(server_id, arguments.order == "drain"))
            case order:
                await leader.submit(PauseBalancer(order == "pause"))
        return 0
    finally:
        await leader.close()


async def _leader_of(root: str) -> Connection:
    """Returns a connection to the coordinators, whose calls find the leader."""
    from wal.client.coordinators import Coordinators
    from wal.network import TlsFiles
    from wal.rpc.connection import Connection

    servers = parse_location(root).servers
    if servers is None:
        raise InvalidArgumentError(f"{root!r} is not a cluster: name its root, etcd://HOST/PATH, or its coordinators, wal://HOST[,HOST…]")
    addresses = servers.addresses
    if servers.root is not None:
        coordinators = await Coordinators.open(servers.root)
        addresses = coordinators.addresses
        await coordinators.close()
    # An operator sends a token as any client does; the environment of a server has the token that servers share.
    token = Settings.load().token or os.environ.get("WAL_SERVER_TOKEN") or None
    tls = TlsFiles(ca=servers.ca, certificate=servers.certificate, key=servers.key) if servers.tls else None
    return await Connection.open(addresses, tls=tls, token=None if token is None else Secret.of(token))


async def _state(leader: Connection) -> ClusterStatus:
    from wal.requests.cluster import GetClusterStatus

    return await leader.submit(GetClusterStatus())


async def _status(leader: Connection, arguments: argparse.Namespace) -> int:
    deadline = time.monotonic() + (arguments.timeout if arguments.wait else 0.0)
    while True:
        try:
            status = await _state(leader)
        except WALError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.2)
            continue
        settled = bool(status.pchannels) and all(_STATES[each.state] == "ASSIGNED" and not each.histories for each in status.pchannels)
        if settled or time.monotonic() >= deadline:
            sys.stdout.write(_as_json(status) if arguments.json else _as_table(status))
            return 0 if settled or not arguments.wait else 1
        await asyncio.sleep(0.1)


async def _server_id(leader: Connection, node: str) -> int:
    status = await _state(leader)
    for each in status.nodes:
        if node in (each.address, f"{each.server_id:x}"):
            return each.server_id
    live_nodes = ", ".join(f"{each.address} ({each.server_id:x})" for each in status.nodes) or "none"
    raise InvalidArgumentError(f"no live node {node!r}: the live ones are {live_nodes}")


def _as_json(status: ClusterStatus) -> str:
    return (
        json_of(
            {
                "version": VERSION,
                "row": "cluster",
                "leader": status.leader,
                "paused": status.paused,
                "broadcasts": status.broadcasts or "running",
                "nodes": [{"node": f"{each.server_id:x}", **{name: getattr(each, name) for name in _OF_NODE}} for each in status.nodes],
                "pchannels": [
                    {
                        "pchannel": each.name,
                        "term": each.term,
                        "state": _STATES[each.state],
                        "node": f"{each.server_id:x}" if each.server_id else "",
                        "address": each.address,
                        "histories": each.histories,
                        "trouble": each.trouble,
                    }
                    for each in status.pchannels
                ],
            }
        ).decode()
        + "\n"
    )


def _as_table(status: ClusterStatus) -> str:
    lines = [f"leader {status.leader}{', paused' if status.paused else ''}, broadcasts {status.broadcasts or 'running'}", ""]
    nodes = [("NODE", "ADDRESS", "PCHANNELS", "STATE")]
    nodes += [
        (
            f"{each.server_id:x}",
            each.address,
            str(each.pchannels),
            ("draining" if each.drains else "healthy") if each.healthy else f"not healthy: {each.trouble}",
        )
        for each in status.nodes
    ]
    pchannels = [("PCHANNEL", "TERM", "STATE", "ADDRESS", "")]
    pchannels += [(each.name, str(each.term), _STATES[each.state], each.address, each.trouble) for each in status.pchannels]
    for rows in (nodes, pchannels):
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append("")
    return "\n".join(lines)
