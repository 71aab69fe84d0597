"""Whatever a launch does in its fork is an outcome, and does the server and the next launch no harm."""

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook.sandbox.boot import INSIDE
from casebook.sandbox.channel import Channel, Closed
from casebook_inside import forks, processes

TOY = Path(__file__).with_name("toy_server.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
WAIT = 60.0


class Toy:
    """A toy server and our end of its channel."""

    def __init__(self, **env: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(TOY), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(INSIDE), **env},
            )
        self.channel = Channel(ours)
        self.count = 0

    def send(self, operation: str, **request: Any) -> int:
        self.count += 1
        limits = {"seconds": request.pop("seconds", WAIT), "memory_bytes": 1 << 30}
        self.channel.send({"op": operation, "id": self.count, "limits": limits, **request})
        return self.count

    def ask(self, operation: str, **request: Any) -> Any:
        answers: Any = queue.SimpleQueue()
        self.count += 1
        limits = {"seconds": request.pop("seconds", WAIT), "memory_bytes": 1 << 30}
        message = {"op": operation, "id": self.count, "limits": limits, **request}
        self.channel.send(message, answers)
        answer = self.channel.take(WAIT, answers)
        assert answer["id"] == self.count
        return answer

    def children(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def close(self) -> None:
        self.channel.close()
        self.process.wait(WAIT)


@pytest.fixture(scope="module")
def toy() -> Iterator[Toy]:
    server = Toy()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def the_next_launch_works(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "toy" in request.fixturenames:
        answer = request.getfixturevalue("toy").ask("echo", value=[1, "ü"], say="hello")
        assert (answer["outcome"], answer["got"]) == ({"kind": "ok"}, [1, "ü"])
        assert answer["output"] == "said hello\n"


@pytest.mark.parametrize("operation", ["hang", "deaf", "stop"])
def test_a_launch_that_hangs(toy: Toy, operation: str) -> None:
    answer = toy.ask(operation, seconds=0.05)
    assert answer["outcome"] == {"kind": "timeout", "seconds": pytest.approx(0.05)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGINT])
def test_a_launch_that_dies_by_a_signal(toy: Toy, number: signal.Signals) -> None:
    assert toy.ask("die", signal=number)["outcome"] == {"kind": "died", "signal": number.name}


@linux
def test_a_signal_without_a_name(toy: Toy) -> None:
    assert toy.ask("die", signal=40)["outcome"] == {"kind": "died", "signal": "SIG40"}


def test_a_launch_that_crashes(toy: Toy) -> None:
    assert toy.ask("crash")["outcome"] == {"kind": "died", "signal": "SIGSEGV"}


@pytest.mark.parametrize("code", [0, 5])
def test_a_launch_that_leaves_without_an_answer(toy: Toy, code: int) -> None:
    assert toy.ask("leave", code=code)["outcome"] == {"kind": "died", "code": code}


def test_a_handler_that_exits_or_fails_says_so_in_its_output(toy: Toy) -> None:
    for operation, word in (
        ("system_exit", "SystemExit: 3"),
        ("not_json", "not JSON serializable"),
    ):
        answer = toy.ask(operation)
        assert answer["outcome"] == {"kind": "died", "code": 1}
        assert word in answer["output"]
    assert "KeyError: 'unknown'" in toy.ask("unknown")["output"]


@linux
def test_a_launch_that_takes_too_much_memory(toy: Toy) -> None:
    assert toy.ask("memory")["outcome"]["kind"] in ("MemoryError", "died")


def test_a_launch_that_prints_without_end(toy: Toy) -> None:
    answer = toy.ask("flood")
    assert answer["outcome"] == {"kind": "OSError"}
    assert 0 < len(answer["output"]) <= forks.MAX_OUTPUT_BYTES


@pytest.mark.parametrize("operation", ["close_output", "many_files"])
def test_a_launch_that_plays_with_files(toy: Toy, operation: str) -> None:
    assert toy.ask(operation)["outcome"] == {"kind": "ok"}


def test_a_launch_whose_child_holds_the_channel(toy: Toy) -> None:
    assert toy.ask("child_holds_the_channel")["outcome"] == {"kind": "ok"}
    answer = toy.ask("child_holds_the_channel", then="die")
    assert answer["outcome"] == {"kind": "died", "signal": "SIGKILL"}


@linux
def test_a_launch_that_leaves_a_daemon(toy: Toy) -> None:
    left = toy.ask("daemon")["pid"]
    toy.ask("echo")  # a launch is answered before its leavings are cleared; the next one finds none
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)


@pytest.mark.parametrize("operation", ["close_everything", "replace_itself"])
def test_a_launch_that_cannot_answer_any_more(toy: Toy, operation: str) -> None:
    assert toy.ask(operation)["outcome"]["kind"] == "died"


@linux
@pytest.mark.parametrize("text", ['{"outcome": {"ki', "[]\n", "nonsense\n", "{}\n", '"x"\n', "\n"])
def test_an_answer_that_is_none(toy: Toy, text: str) -> None:
    assert toy.ask("half_an_answer", text=text)["outcome"]["kind"] == "died"


def test_what_one_launch_does_to_its_process_ends_with_it(toy: Toy, tmp_path: Path) -> None:
    toy.ask("environment", env={"GIVEN": "secret", "PATH": None}, cwd=str(tmp_path))
    seen = toy.ask("see", env={"OTHER": "1"})
    assert seen["env"]["OTHER"] == "1"
    assert "PATH" in seen["env"]
    assert not {"GIVEN", "LEFT_BEHIND"} & set(seen["env"])
    assert toy.ask("see", cwd=str(tmp_path))["cwd"] == str(tmp_path.resolve())


def test_text_that_is_no_utf8_and_a_very_long_word(toy: Toy) -> None:
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    words = [odd, "\udc00\ud800", "x" * 5_000_000]
    assert toy.ask("echo", value=words)["got"] == words
    assert toy.ask("see", env={"ODD": odd})["env"]["ODD"] == odd
    for name, value in (("BAD", "\ud800"), ("NUL", "a\0b"), ("A=B", "x"), ("", "x")):
        assert toy.ask("see", env={name: value})["outcome"]["kind"] == "died"


@linux
def test_a_launch_sees_no_more_than_its_own_channel(toy: Toy) -> None:
    toy.send("hang", seconds=WAIT)
    assert toy.ask("see")["sockets"] == 1


@linux
def test_two_hundred_launches_leave_nothing_behind() -> None:
    server = Toy()
    server.ask("echo")
    server.ask("echo")
    files = server.files()
    for number in range(200):
        if number % 20 == 0:
            server.ask("leave", code=1)
        server.ask("echo")
    assert server.files() <= files + 3  # a new spare may be there, or not yet
    assert len(server.children()) <= 2  # the last one may still be on its way out
    server.close()


@linux
def test_a_spare_that_died_is_replaced() -> None:
    server = Toy()
    for _ in range(3):
        server.ask("echo")
        for pid in server.children():
            handle = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            assert select.select([handle], [], [], WAIT)[0]
            os.close(handle)
        assert server.ask("echo")["outcome"] == {"kind": "ok"}
    server.close()


def test_a_rehearsal_that_fails_costs_no_launch() -> None:
    server = Toy(BAD_REHEARSAL="1")
    assert server.ask("echo")["outcome"] == {"kind": "ok"}
    server.close()


@linux
@pytest.mark.parametrize("how", ["close", "kill"])
def test_no_fork_outlives_the_server(tmp_path: Path, how: str) -> None:
    server = Toy()
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    server.send("hang", fifo=str(fifo))
    handle = os.pidfd_open(int(fifo.read_text("utf-8")))
    if how == "close":
        server.close()
    else:
        server.process.kill()
        server.process.wait(WAIT)
    assert select.select([handle], [], [], WAIT)[0], "the fork is still there"
    os.close(handle)
    server.channel.close()


def test_answers_without_a_reader_do_not_hold_up_the_server(toy: Toy) -> None:
    for _ in range(10):  # more than a socket's buffer holds
        toy.send("echo", value="x" * 200_000)


def test_several_threads_get_their_own_answers(toy: Toy) -> None:
    wrong = []

    def work(number: int) -> None:
        answers: Any = queue.SimpleQueue()
        for turn in range(5):
            identity = 10_000 + number * 100 + turn
            toy.channel.send({"op": "echo", "id": identity, "value": identity}, answers)
            if toy.channel.take(WAIT, answers)["got"] != identity:
                wrong.append(identity)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@linux
def test_what_a_launch_started_ends_though_nobody_can_be_answered(tmp_path: Path) -> None:
    noted = tmp_path / "pid"

    def handler(_request: dict[str, Any]) -> dict[str, Any]:
        noted.write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        return {"outcome": {"kind": "ok"}}

    def gone(_message: dict[str, Any]) -> None:
        raise BrokenPipeError

    ours, theirs = socket.socketpair()
    server = forks.ForkServer(theirs, {"once": handler})
    server.reply = gone  # type: ignore[method-assign]
    with ours, theirs, pytest.raises(BrokenPipeError):
        server.handle({"op": "once", "id": 0})
    try:
        left = os.pidfd_open(int(noted.read_text()))
    except ProcessLookupError:
        return
    assert select.select([left], [], [], WAIT)[0]
    os.close(left)


def test_run_once() -> None:
    done = forks.run_once(lambda request: {"outcome": {"kind": "ok"}, "x": request["x"]}, {"x": 1})
    assert (done["outcome"], done["x"]) == ({"kind": "ok"}, 1)
    died = forks.run_once(lambda _: os._exit(4), {})
    assert died["outcome"] == {"kind": "died", "code": 4}


@given(st.binary())
def test_any_bytes_are_an_answer_or_none(received: bytes) -> None:
    assert forks.parsed(received) is None or json.loads(received)["outcome"] is not None


def test_died_and_poll_of_a_process_that_somebody_else_reaped() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert processes.poll(pid) == 0
    assert processes.end(pid) == 0


def test_a_channel_tells_when_the_other_end_is_gone() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall(b'{"ready": true}\n')
    assert channel.take(WAIT) == {"ready": True}
    with pytest.raises(TimeoutError):
        channel.take(0)
    theirs.sendall(b"this is no JSON\n")
    with pytest.raises(Closed):
        channel.take(WAIT)
    theirs.close()
    with pytest.raises(Closed):
        channel.send({"id": 1})
    channel.close()
    channel.close()
