"""``server chat`` at a real terminal, with a server that answers from a script."""

from __future__ import annotations

import threading

from fake_openai import FakeOpenAI
from harness import SERVER, clean_environment
from terminal import CTRL_C, CTRL_D, Terminal

PROMPT = "> "
PIECES = (
    {"delta": {"reasoning_content": "Hm."}},
    {"delta": {"content": "Hel"}},
    {"delta": {"content": "lo"}, "finish_reason": "length"},
)


def test_a_conversation_at_a_terminal() -> None:
    held, release = threading.Event(), threading.Event()
    release.set()

    def before(index: int) -> None:
        if index == 2 and not release.is_set():
            held.set()
            release.wait(20)

    with FakeOpenAI(pieces=PIECES, before_piece=before) as server:
        command = [str(SERVER), "chat", "--url", server.url, "--system", "Be brief."]
        with Terminal(command, clean_environment()) as terminal:

            def enter(text: str, *, then: str = PROMPT) -> str:
                terminal.type(text + "\n")
                return terminal.wait_for("\n" + then)

            def last() -> list[str]:
                return [f"{m['role']}: {m['content']}" for m in server.bodies[-1]["messages"]]

            terminal.wait_for("/help tells more, Ctrl-D leaves\n" + PROMPT)
            shown = enter("one")
            assert "\x1b[2mHm.\x1b[0m\nHello" in shown
            assert "most tokens" in shown
            assert last() == ["system: Be brief.", "user: one"]

            release.clear()
            terminal.type("two\n")
            assert held.wait(20)
            terminal.wait_for("Hel")
            terminal.type(CTRL_C)
            terminal.wait_for("\n" + PROMPT)
            release.set()
            terminal.type(CTRL_C)
            terminal.wait_for("(Ctrl-D leaves)\n" + PROMPT)
            said = ["system: Be brief.", "user: one", "assistant: Hello", "user: two"]
            assert "\n".join([*said, "assistant: Hel"]) in enter("/history")

            listed = enter("/help")
            for name in ("help", "clear", "system", "history", "retry", "undo", "set", "exit"):
                assert f"\n/{name}" in listed
            enter("/retry")
            assert last() == said
            assert enter("/history").count("assistant: Hello") == 2
            enter("/undo")
            assert "two" not in enter("/history")

            assert "temperature = 0.2" in enter("/set temperature 0.2")
            assert "needs it" in enter("/set messages []")
            enter("/system Be long.")
            enter("//etc is a folder")
            assert server.bodies[-1]["temperature"] == 0.2
            assert last()[0] == "system: Be long."
            assert last()[-1] == "user: /etc is a folder"
            enter("/set temperature")
            assert "seed = null" in enter("/set seed null")
            assert "not set" not in enter("/set seed")

            enter("/clear")
            enter("/system none")
            enter('"""first', then="... ")
            enter('second"""')
            assert "temperature" not in server.bodies[-1]
            assert last() == ["user: first\nsecond"]
            enter("/tmp/a is a file")
            assert last()[-1] == "user: /tmp/a is a file"

            num_asked = len(server.bodies)
            assert "did you mean help" in enter("/hlep")
            assert len(server.bodies) == num_asked
            server.error = (400, "it does not fit")
            assert "error: the server answered 400: it does not fit" in enter("more")
            terminal.type(CTRL_D)
            assert terminal.process.wait(20) == 0


def test_a_conversation_outlives_its_server() -> None:
    with FakeOpenAI() as server:
        terminal = Terminal([str(SERVER), "chat", "--url", server.url], clean_environment())
        terminal.wait_for(PROMPT)
    with terminal:
        terminal.type("hi\n")
        terminal.wait_for("error: no server answers")
        terminal.wait_for(PROMPT)
        terminal.type("/exit\n")
        assert terminal.process.wait(20) == 0
