"""The walls: what the audit hook refuses, and what the kernel refuses below it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

GUARD = """
import json, os, shutil, socket, sqlite3, subprocess, sys, tempfile
from casebook_inside import guard
home, outside, code = sys.argv[1:4]
other = open(os.path.join(outside, "kept"), "w"); other.write("kept"); other.close()
os.chdir(outside)
guard.install([code, os.path.dirname(os.path.dirname(guard.__file__))], [home])
sys.dont_write_bytecode = False
seen = {}
def attempt(name, function):
    try:
        function()
        seen[name] = "done"
    except Exception as error:
        seen[name] = f"{type(error).__name__}: {error}"
def load(path):
    import importlib.util
    spec = importlib.util.spec_from_file_location("loaded", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
folder = os.open(outside, os.O_RDONLY)
o = lambda name: os.path.join(outside, name)
h = lambda name: os.path.join(home, name)
attempt("write", lambda: open(o("new"), "w"))
attempt("write relative", lambda: open("new", "w"))
attempt("append", lambda: open(o("kept"), "a"))
attempt("os.open", lambda: os.open(o("new"), os.O_CREAT | os.O_RDWR))
attempt("mkdir", lambda: os.mkdir(o("dir")))
attempt("mkdir at", lambda: os.mkdir("dir", dir_fd=folder))
attempt("remove", lambda: os.remove(o("kept")))
attempt("remove at", lambda: os.remove("kept", dir_fd=folder))
attempt("rename away", lambda: os.rename(o("kept"), h("kept")))
attempt("rename to", lambda: os.rename(h("."), o("kept")))
attempt("symlink", lambda: os.symlink("/etc", o("link")))
attempt("chmod", lambda: os.chmod(o("kept"), 0))
attempt("rmtree", lambda: shutil.rmtree(outside))
attempt("sqlite", lambda: sqlite3.connect(o("db")))
attempt("sqlite by uri", lambda: sqlite3.connect("file:" + o("db") + "?mode=rwc", uri=True))
attempt("dots", lambda: open(h("../outside/new"), "w"))
attempt("sibling", lambda: open(home + "-not", "w"))
os.symlink(outside, h("through"))
attempt("through a link", lambda: open(h("through/new"), "w"))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX).connect(o("docker.sock")))
attempt("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect(b"\\0name"))
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("tcp6", lambda: socket.socket(socket.AF_INET6).connect(("::1", 9)))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
attempt("sendto", lambda: udp.sendto(b"x", ("127.0.0.1", 9)))
attempt("sendmsg", lambda: udp.sendmsg([b"x"], [], 0, ("127.0.0.1", 9)))
attempt("getaddrinfo", lambda: socket.getaddrinfo("example.org", 80))
attempt("gethostbyname", lambda: socket.gethostbyname("example.org"))
attempt("code", lambda: load(o("model.py")))
attempt("program", lambda: subprocess.run([o("tool")]))
attempt("exec", lambda: os.execv(o("tool"), ["tool"]))
os.setsid()
guard.enter_launch()
attempt("signal to the parent", lambda: os.kill(os.getppid(), 0))
attempt("signal to all", lambda: os.kill(-1, 0))

attempt("ok: read", lambda: open(o("kept")).read())
attempt("ok: write home", lambda: open(h("x"), "w"))
attempt("ok: null", lambda: open(os.devnull, "w"))
attempt("ok: temporary", lambda: tempfile.TemporaryDirectory(dir=home).cleanup())
attempt("ok: tree", lambda: (os.makedirs(h("a/b/c")), shutil.rmtree(h("a"))))
attempt("ok: sqlite", lambda: sqlite3.connect(h("db")))
attempt("ok: memory", lambda: sqlite3.connect(":memory:"))
attempt("ok: numeric", lambda: socket.getaddrinfo("127.0.0.1", 80))
attempt("ok: numeric6", lambda: socket.getaddrinfo("::1", 80))
attempt("ok: localhost", lambda: socket.getaddrinfo("localhost", 80))
attempt("ok: any", lambda: socket.getaddrinfo(None, 80))
attempt("ok: bind", lambda: socket.socket().bind(("127.0.0.1", 0)))
pair = socket.socketpair()
attempt("ok: pair", lambda: pair[0].sendmsg([b"x"]))
attempt("ok: code", lambda: load(os.path.join(code, "good.py")))
attempt("ok: stdlib", lambda: __import__("wave"))
attempt("ok: eval", lambda: exec("x = 1"))
attempt("ok: program", lambda: subprocess.run(["true"], check=True))
attempt("ok: shell", lambda: subprocess.run("true", shell=True, check=True))
attempt("ok: signal to itself", lambda: os.kill(os.getpid(), 0))
print(json.dumps(seen))
"""


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    made = [tmp_path / name for name in ("home", "outside", "code")]
    for folder in made:
        folder.mkdir()
    (tmp_path / "outside" / "model.py").write_text("print('the checkpoint ran')", "utf-8")
    (tmp_path / "outside" / "tool").write_text("#!/bin/sh\ntouch ran\n", "utf-8")
    (tmp_path / "outside" / "tool").chmod(0o755)
    (tmp_path / "code" / "good.py").write_text("", "utf-8")
    return [str(folder) for folder in made]


def test_what_the_audit_hook_refuses(in_child: Run, folders: list[str]) -> None:
    seen = in_child(GUARD, *folders)
    refused = {name: said for name, said in seen.items() if not name.startswith("ok: ")}
    for name, said in refused.items():
        assert "casebook: the sandbox" in said, (name, said)
    allowed = {name: said for name, said in seen.items() if name.startswith("ok: ")}
    assert set(allowed.values()) == {"done"}, allowed
    # A look-up fails as it does without a name server: SGLang catches that.
    assert seen["getaddrinfo"].startswith("gaierror")
    assert sorted(p.name for p in Path(folders[1]).iterdir()) == ["kept", "model.py", "tool"]


KERNEL = """
import ctypes, json, os, socket, subprocess, sys
from casebook_inside import confine
home, outside = sys.argv[1:3]
os.chdir(outside)
who = (os.getuid(), os.getgid())
network = confine.leave_network()
files = confine.allow_writes([home, outside + "/missing"])
inner = os.fork()
if inner == 0:  # a launch: less than its server
    confine.allow_writes([])
    try:
        open(home + "/by launch", "w")
    except OSError:
        pass
    os._exit(0)
os.waitpid(inner, 0)
libc = ctypes.CDLL(None)
connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def routed():
    try:
        connection.connect(("192.0.2.1", 9))
        return True
    except OSError:
        return False
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
print(json.dumps({
    "network": network, "files": files, "same": who == (os.getuid(), os.getgid()),
    "write outside": libc.open(os.fsencode(outside + "/by libc"), os.O_WRONLY | os.O_CREAT, 0o600),
    "remove": libc.unlink(os.fsencode(outside + "/tool")),
    "write home": libc.open(os.fsencode(home + "/by libc"), os.O_WRONLY | os.O_CREAT, 0o600) >= 0,
    "subprocess": subprocess.run(["touch", outside + "/by touch"], capture_output=True).returncode,
    "null": open(os.devnull, "w").write("x"), "routed": routed(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "home": sorted(os.listdir(home)), "outside": sorted(os.listdir(outside)),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_what_the_kernel_refuses(in_child: Run, folders: list[str]) -> None:
    seen = in_child(KERNEL, *folders)
    assert seen["same"]
    assert seen["null"] == 1
    assert seen["write home"]
    if not (seen["network"] or seen["files"]):
        pytest.skip("this kernel or container lends neither Landlock nor a network namespace")
    if seen["network"]:
        assert not seen["routed"]
        assert seen["interfaces"] == ["lo"] or "lo" in seen["interfaces"]
    if seen["files"]:
        assert (seen["write outside"], seen["remove"]) == (-1, -1)
        assert seen["subprocess"] != 0
        assert seen["home"] == ["by libc"]
        assert seen["outside"] == ["model.py", "tool"]
