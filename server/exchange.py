"""``Exchange``: how far the reply to one request is that a plugin's code gives."""

from __future__ import annotations

from starlette.types import Message, Receive, Scope, Send


class Exchange:
    """Hand its ``receive`` and ``send`` to the plugin. Whoever is done without a reply must have
    lost the client; a WebSocket has none."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._has_a_reply = scope["type"] == "http"
        self._receive = receive
        self._send = send
        self.is_started = False
        self._is_complete = False
        self._is_gone = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_gone = self._is_gone or message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        self.is_started = self.is_started or message["type"] == "http.response.start"
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True

    def check_end(self) -> None:
        """Raises:
        RuntimeError: the plugin's code ended, and its reply did not.
        """
        if self._has_a_reply and not (self._is_complete or self._is_gone):
            what = "the end of its reply" if self.is_started else "a reply"
            raise RuntimeError(f"the route ended without {what}")
