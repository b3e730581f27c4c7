"""``Secret``: a key that somebody may know, and that the program itself cannot show."""

from __future__ import annotations


class Secret:
    """Keeps the SHA-256 of a text and nothing else of it, so that no log, report or traceback can
    hold the text, and so that two are compared at one length."""

    __slots__ = ("_digest",)

    def __init__(self, text: str) -> None:
        self._digest = digest_of(text)

    def matches(self, digest: bytes) -> bool:
        """Whether ``digest_of`` the same text gave this; it takes the same time either way."""
        import hmac

        return hmac.compare_digest(self._digest, digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return "Secret(...)"


def digest_of(text: str) -> bytes:
    """32 bytes. A header's text is Latin-1, as which every byte of a request can be read."""
    import hashlib  # its library takes milliseconds to load, and most programs have no key

    return hashlib.sha256(text.encode("latin-1")).digest()
