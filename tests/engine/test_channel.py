"""Frames over a socketpair, blocking and on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time

import numpy
import pytest

from hookserve.engine import channel as channel_module
from hookserve.engine.channel import (
    AsyncChannel,
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelOverflow,
)
from hookserve.engine.messages import Abort, AddRequest, CollectiveRpc, RpcResult, Shutdown
from hookserve.engine.sampling_params import SamplingParams


@pytest.fixture
def sockets():
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def pair(sockets):
    return Channel(sockets[0]), Channel(sockets[1])


def request(size: int = 3) -> AddRequest:
    return AddRequest("r", list(range(size)), SamplingParams(seed=7, stop=("x",)), 1.5)


def test_messages_arrive_whole_equal_and_in_order(pair):
    left, right = pair
    sent = [request(), Abort(["a", "b"]), Shutdown(), request(0)]
    for message in sent:
        left.send(message)
    assert [right.recv() for _ in sent] == sent
    right.send(RpcResult(3, {"x": [1, None]}))
    assert left.recv() == RpcResult(3, {"x": [1, None]})


def test_try_recv_answers_none_until_the_frame_is_whole(sockets, pair):
    _, right = pair
    body = b"\x81\xa4type\xa8Shutdown"
    frame = struct.pack("<I", len(body)) + body
    assert right.try_recv() is None
    for at in range(len(frame) - 1):
        sockets[0].sendall(frame[at : at + 1])
        assert right.try_recv() is None
    sockets[0].sendall(frame[-1:])
    assert right.try_recv() == Shutdown()
    assert right.try_recv() is None


def test_a_frame_larger_than_the_sockets_buffer_passes(pair):
    left, right = pair
    message = request(300_000)
    sender = threading.Thread(target=left.send, args=(message,))
    sender.start()
    assert right.recv() == message
    sender.join(10)


def endless_list() -> list[object]:
    inside: list[object] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    "value", [2**64, endless_list(), "\ud800"], ids=["large", "endless", "half"]
)
def test_a_value_that_has_no_bytes_is_refused_and_the_next_message_passes(pair, value):
    left, right = pair
    with pytest.raises(ChannelError, match="a CollectiveRpc cannot be sent"):
        left.send(CollectiveRpc(1, "m", [value]))
    left.send(Shutdown())
    assert right.recv() == Shutdown()


def test_the_other_ends_death_is_told_by_both_receiving_and_sending(pair):
    left, right = pair
    left.send(Shutdown())
    left.close()
    assert right.recv() == Shutdown()
    with pytest.raises(ChannelClosed):
        right.recv()
    with pytest.raises(ChannelClosed):
        right.try_recv()
    with pytest.raises(ChannelClosed):
        right.send(Shutdown())


def test_a_frame_that_is_too_large_is_refused_on_both_sides(sockets, pair, monkeypatch):
    left, right = pair
    sockets[0].sendall(struct.pack("<I", channel_module.MAX_FRAME_BYTES + 1))
    with pytest.raises(ChannelError, match="is the limit"):
        right.recv()
    monkeypatch.setattr(channel_module, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(ChannelError, match="AddRequest of"):
        left.send(request(2000))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa4type\xa4Nope", b"\x93\x01\x02\x03"])
def test_bytes_that_are_no_message_are_an_error_and_no_crash(sockets, pair, body):
    sockets[0].sendall(struct.pack("<I", len(body)) + body)
    with pytest.raises(ChannelError, match="not a message"):
        pair[1].recv()


def test_arrays_and_tensors_cross_and_other_objects_are_refused_by_type(pair):
    import torch

    left, right = pair
    array = numpy.arange(6, dtype=numpy.float64).reshape(2, 3)
    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    left.send(CollectiveRpc(1, "f", [array, tensor, torch.empty(0, 2), numpy.int64(5)]))
    received = right.recv().args
    assert numpy.array_equal(received[0], array) and received[0].dtype == array.dtype
    assert torch.equal(received[1], tensor) and received[1].dtype == torch.bfloat16
    assert received[2].shape == (0, 2)
    assert received[3] == 5
    with pytest.raises(TypeError, match=r"threading\.Event cannot be sent"):
        left.send(CollectiveRpc(2, "f", [threading.Event()]))
    left.send(Shutdown())
    assert right.recv() == Shutdown()


def test_a_blocked_recv_uses_no_cpu(pair):
    left, right = pair
    used: list[float] = []

    def receive() -> None:
        begin = time.thread_time()
        right.recv()
        used.append(time.thread_time() - begin)

    thread = threading.Thread(target=receive)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    left.send(Shutdown())
    thread.join(10)
    assert used[0] < 0.05


def test_the_loops_form_speaks_with_the_blocking_form(sockets):
    async def scenario() -> None:
        near, far = AsyncChannel(sockets[0]), Channel(sockets[1])
        await near.send(request())
        assert far.recv() == request()
        far.send(Abort(["a"]))
        far.send(Abort(["b"]))
        assert await near.recv() == Abort(["a"])
        assert near.try_recv() == Abort(["b"])
        assert near.try_recv() is None
        far.close()
        with pytest.raises(ChannelClosed):
            await near.recv()

    asyncio.run(scenario())


def test_a_cancelled_receive_loses_nothing(sockets):
    async def scenario() -> None:
        near, far = AsyncChannel(sockets[0]), AsyncChannel(sockets[1])
        for n in range(50):
            waiting = asyncio.create_task(near.recv())
            await asyncio.sleep(0)
            await far.send(Abort([str(n)]))
            if n % 2:
                await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await waiting == Abort([str(n)])
                continue
            assert await near.recv() == Abort([str(n)])

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_closing_ends_a_receive_and_leaves_the_number_to_who_has_it_next(sockets):
    async def scenario() -> None:
        left, right = socket.socketpair()
        near = AsyncChannel(sockets[0])
        number = near.fileno()
        waiting = asyncio.create_task(near.recv())
        await asyncio.sleep(0)
        near.close()
        with left, right, socket.socket(fileno=os.dup2(left.fileno(), number)):
            readable = asyncio.Event()
            asyncio.get_running_loop().add_reader(number, readable.set)
            with pytest.raises(ChannelClosed):
                await waiting
            right.send(b"x")
            await asyncio.wait_for(readable.wait(), 10)
            asyncio.get_running_loop().remove_reader(number)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_cancelled_send_still_sends_its_whole_frame(sockets):
    big = request(200_000)

    async def scenario() -> None:
        near, far = AsyncChannel(sockets[0]), AsyncChannel(sockets[1])
        first = asyncio.create_task(near.send(big))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        last = asyncio.create_task(near.send(Shutdown()))
        assert await far.recv() == big
        assert await far.recv() == Shutdown()
        await last

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_many_senders_do_not_mix_their_frames(sockets):
    async def scenario() -> None:
        near, far = AsyncChannel(sockets[0]), AsyncChannel(sockets[1])
        messages = [AddRequest(str(n), [n] * (n * 997), SamplingParams(), 0.0) for n in range(60)]
        sends = [asyncio.create_task(near.send(message)) for message in messages]
        received = [await far.recv() for _ in messages]
        await asyncio.gather(*sends)
        assert sorted(received, key=lambda m: int(m.request_id)) == messages

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_reader_that_sleeps_makes_senders_fail_instead_of_filling_memory(sockets, monkeypatch):
    monkeypatch.setattr(channel_module, "MAX_PENDING_BYTES", 500_000)

    async def scenario() -> None:
        near = AsyncChannel(sockets[0])
        sends = [asyncio.create_task(near.send(request(100_000))) for _ in range(8)]
        done, waiting = await asyncio.wait(sends, timeout=0.2)
        assert done and waiting
        for task in done:
            with pytest.raises(ChannelOverflow):
                task.result()
        sockets[1].close()
        for task in waiting:
            with pytest.raises(ChannelClosed):
                await task

    asyncio.run(asyncio.wait_for(scenario(), 20))
