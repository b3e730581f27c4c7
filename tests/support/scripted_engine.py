"""An engine that answers from a script: the other end of the channel, without a model.

``ScriptedEngine`` lives in the test's own event loop; run as a program this file is an engine
process for the supervisor: ``scripted_engine.py MODE --fd N``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from hookserve.engine.channel import AsyncChannel, Channel, ChannelClosed
from hookserve.engine.messages import (
    Abort,
    AddRequest,
    CollectiveRpc,
    Describe,
    Described,
    EngineCoreOutput,
    Failed,
    Finish,
    ManifestSent,
    Proceed,
    Ready,
    ResetPrefixCache,
    RpcResult,
    SchedulerStats,
    Shutdown,
    Start,
    StepOutputs,
)
from hookserve.hookspecs import Host, bootstrap, current
from hookserve.hookspecs.crash_mark import CrashMark
from hookserve.hookspecs.report import ProcessReport

Script = Callable[[AddRequest], list[EngineCoreOutput]]
"""What the steps do for a request, in order."""


def make_ready(num_gpu_blocks: int = 64, block_size: int = 4) -> Ready:
    return Ready(num_gpu_blocks, block_size, 1024, "a test", 1, "a test", 0.0, 0.0)


def say(text: str, finish_reason: str = "length") -> Script:
    """One step for each byte of the text; the last one ends the request."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        tokens = list(text.encode())
        return [
            EngineCoreOutput(
                request.request_id,
                [token],
                finish_reason if at == len(tokens) - 1 else None,
            )
            for at, token in enumerate(tokens)
        ]

    return script


class ScriptedEngine:
    """Answers each request with what ``script`` says, one step at a time.

    Attributes:
        requests, aborted, finished: what the front asked for.
        gate: clear it to hold all steps back.
        step_s: how long a step takes; in that time the front can answer to the one before.
        reports: what it says of its plugins; ``None``: it does not answer.
        num_questions: how often it was asked for that.
        answers: to calls of workers, by method; any other method is unknown to them.
        num_resets: how often its prefix cache was emptied.
    """

    def __init__(self, sock: socket.socket, script: Script) -> None:
        self.script = script
        self.requests: list[AddRequest] = []
        self.aborted: list[str] = []
        self.finished: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.step_estimate_s = 0.01
        self.step_s = 0.001
        self.num_questions = 0
        self.num_resets = 0
        self.answers: dict[str, object] = {}
        self.reports: list[ProcessReport] | None = [
            ProcessReport(process="engine", pid=1, roles=["engine", "worker"])
        ]
        self._channel = AsyncChannel(sock)
        self._plans: dict[str, list[EngineCoreOutput]] = {}
        self._work = asyncio.Event()
        self._num_steps = 0
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._step())]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._channel.close()

    async def _read(self) -> None:
        while True:
            try:
                message = await self._channel.recv()
            except ChannelClosed:
                return
            if isinstance(message, AddRequest):
                self.requests.append(message)
                self._plans[message.request_id] = self.script(message)
                self._work.set()
            elif isinstance(message, Abort):
                self.aborted += message.request_ids
                for request_id in message.request_ids:
                    self._plans.pop(request_id, None)
                await self._report_idle()
            elif isinstance(message, Finish):
                self.finished.append((message.request_id, message.reason))
                self._plans.pop(message.request_id, None)
                await self._report_idle()
            elif isinstance(message, Describe):
                self.num_questions += 1
                if self.reports is not None:
                    await self._channel.send(Described(message.call_id, self.reports))
            elif isinstance(message, CollectiveRpc):
                known = message.method in self.answers
                answer = self.answers.get(message.method)
                error = None if known else "no such method"
                await self._channel.send(RpcResult(message.call_id, answer, error))
            elif isinstance(message, ResetPrefixCache):
                self.num_resets += 1
                await self._channel.send(RpcResult(message.call_id, True))

    async def _report_idle(self) -> None:
        if not self._plans:
            self._num_steps += 1
            await self._channel.send(StepOutputs(self._num_steps, [], SchedulerStats(), 0.0))

    async def _step(self) -> None:
        while True:
            await self._work.wait()
            await self.gate.wait()
            outputs = [plan.pop(0) for plan in self._plans.values() if plan]
            self._plans = {name: plan for name, plan in self._plans.items() if plan}
            if not self._plans:
                self._work.clear()
            if outputs:
                self._num_steps += 1
                stats = SchedulerStats(
                    num_running_reqs=len(self._plans), num_generation_tokens=len(outputs)
                )
                await self._channel.send(
                    StepOutputs(self._num_steps, outputs, stats, self.step_estimate_s)
                )
            await asyncio.sleep(self.step_s)


# -- as a process -------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--mark", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=arguments.fd))
    start = channel.recv()
    assert isinstance(start, Start)
    if arguments.mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if arguments.mode == "refuse":
        channel.send(Failed(74, "tensor x is missing from the file"))
        return 74
    host = bootstrap({"engine", "worker"}, start.plugins, crash_mark=CrashMark.open(arguments.mark))
    host.calls.process_started(host.roles, None)
    send_manifest(channel, host, arguments.mode)
    try:
        assert isinstance(channel.recv(), Proceed)
        if arguments.mode == "slow":
            time.sleep(60)
        channel.send(make_ready(4096))
        return loop(channel, host)
    except ChannelClosed:
        return 0


def send_manifest(channel: Channel, host: Host, mode: str) -> None:
    """The real manifest of this process; ``plugin-fails`` says that the denied grow one by one."""
    manifest = msgspec.to_builtins(host.manifest())
    if mode.startswith("plugin-fails:"):
        names = mode.removeprefix("plugin-fails:").split(",")
        denied = {each.identity for each in host.settings.denied}
        for name in names:
            if name not in denied:
                manifest["plugins"] = [
                    {**each, "state": "out", "stage": "import", "error": "ImportError: no"}
                    if each["identity"] == name
                    else each
                    for each in manifest["plugins"]
                ]
                break
    channel.send(ManifestSent(manifest))


def loop(channel: Channel, host: Host) -> int:
    """Two tokens a request, one in each step, until told to stop. The prompt ``[9]`` never ends,
    ``[8]`` kills this process, ``[7]`` tells plugins of a step."""
    num_steps = 0
    endless: list[str] = []
    while True:
        message = channel.try_recv() if endless else channel.recv()
        if isinstance(message, Shutdown):
            return 0
        if isinstance(message, Describe):
            channel.send(Described(message.call_id, [current().report("engine")]))
        if isinstance(message, Abort):
            endless = [name for name in endless if name not in message.request_ids]
        outputs = [EngineCoreOutput(name, [65]) for name in endless]
        if isinstance(message, AddRequest):
            name = message.request_id
            if message.prompt_token_ids == [8]:
                os.kill(os.getpid(), signal.SIGKILL)
            if message.prompt_token_ids == [7]:
                host.calls.hooks["after_schedule"].tell(None)  # type: ignore[attr-defined]
            if message.prompt_token_ids == [9]:
                endless.append(name)
            else:
                outputs += [EngineCoreOutput(name, [66]), EngineCoreOutput(name, [67], "length")]
        if outputs:
            num_steps += 1
            channel.send(StepOutputs(num_steps, outputs, SchedulerStats(), 0.01))
        if endless:
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
