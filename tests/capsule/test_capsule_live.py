"""Live mode: a Python that has SGLang already, real or made up here."""

from __future__ import annotations

import importlib.util
import os
import sys
import venv
from pathlib import Path

import pytest

from casebook.capsule import ensure, live, verify
from casebook.errors import CapsuleError, WorkerError
from casebook.resolution import OutcomeKind, Verdict, trace

SERVER = ["python", "-m", "sglang.launch_server"]

SERVER_ARGS = """\
import argparse
import dataclasses
import logging

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    page_size: int = 1

    def __post_init__(self):
        self._handle_page_size()

    def _handle_page_size(self):
        if self.page_size == 7:
            logger.warning("page_size 7 is not served; 64 is used")
            self.page_size = 64  # the deciding line
        if self.page_size > 64:
            raise ValueError("page_size is too large")

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--page-size", type=int, default=1)

    @classmethod
    def from_cli_args(cls, args):
        return cls(**{f.name: getattr(args, f.name) for f in dataclasses.fields(cls)})


def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))
"""


def make_python(folder: Path) -> tuple[Path, Path]:
    """A virtual environment without pip: its interpreter and its site-packages."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    return folder / "bin" / "python", site


def install_fake_sglang(site: Path, version: str | None = "0.5.99") -> Path:
    package = site / "sglang"
    (package / "srt").mkdir(parents=True)
    # Importing SGLang to ask for its version would show here.
    (package / "__init__.py").write_text('__version__ = "0.5.98"\nprint("sglang is imported")\n')
    (package / "srt" / "__init__.py").touch()
    (package / "srt" / "server_args.py").write_text(SERVER_ARGS)
    if version:
        info = site / f"sglang-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return package


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python, site = make_python(tmp_path_factory.mktemp("live") / "venv")
    install_fake_sglang(site)
    return python


def refused(python: Path, **options: float) -> str:
    with pytest.raises(CapsuleError) as caught:
        live(python, **options)
    message = str(caught.value)
    assert str(python) in message
    assert "\n" not in message
    return message


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "no" / "python")
    (tmp_path / "python").symlink_to(tmp_path / "gone")
    assert "is a link to nothing" in refused(tmp_path / "python")


def test_a_folder_and_the_interpreter_in_it(tmp_path: Path) -> None:
    assert "name the interpreter" in refused(tmp_path)
    python, _ = make_python(tmp_path / "venv")
    assert f"did you mean {python}?" in refused(tmp_path / "venv")


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    assert "is not executable" in refused(tmp_path / "python")


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    assert "cannot be run" in refused(script(tmp_path / "python", "nothing to run"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("#!/bin/sh\necho oh dear >&2\nexit 3\n", "exit code 3: oh dear"),
        ("#!/bin/sh\nexit 0\n", "exit code 0: it printed no error"),
        ("#!/bin/sh\nkill -9 $$\n", "exit code -9"),
    ],
)
def test_a_program_that_is_no_python(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refused(script(tmp_path / "python", text))


def test_a_program_that_hangs_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    text = f"#!/bin/sh\nexec 3> {tmp_path}/alive\ntail -f /dev/null\nexit 1\n"
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    message = refused(script(tmp_path / "python", text), seconds=0.5)
    assert "did not answer within 0.5 s" in message
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end: nobody holds the other side any more
    os.close(reader)


def test_a_python_that_is_too_old_is_told_so(tmp_path: Path) -> None:
    answer = 'casebook-live:{"python": [3, 6, 15], "folder": "/x/sglang", "version": "0.1"}'
    text = f"#!/bin/sh\necho '{answer}'\n"
    assert "Python 3.6.15, which is too old" in refused(script(tmp_path / "python", text))


def test_a_python_without_sglang(tmp_path: Path) -> None:
    python, site = make_python(tmp_path / "venv")
    assert "has no sglang package" in refused(python)
    (site / "sglang").mkdir()  # a folder of that name alone is no package
    assert "has no sglang package" in refused(python)


def test_a_package_that_does_not_say_its_version(tmp_path: Path) -> None:
    python, site = make_python(tmp_path / "venv")
    install_fake_sglang(site, version=None).joinpath("__init__.py").write_text("")
    assert "does not say its version" in refused(python)


def test_a_source_tree_is_asked_for_its_version(tmp_path: Path) -> None:
    python, site = make_python(tmp_path / "venv")
    package = install_fake_sglang(site, version=None)
    assert live(python).release == "0.5.98"
    (package / "_version.py").write_text("__version__ = version = '0.5.97'\n")
    assert live(python).release == "0.5.97"


def test_version_and_place_are_learnt_without_importing_sglang(fake: Path) -> None:
    found = live(str(fake))
    assert (found.release, found.live, found.lock_sha256) == ("0.5.99", True, "")
    assert found.site == next(fake.parents[1].glob("lib/python3*/site-packages"))
    assert "class ServerArgs" in found.source("srt/server_args.py")
    assert verify(found) == []
    assert not list(found.sglang.rglob("*.pyc"))


def test_the_link_of_a_virtual_environment_is_not_followed(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fake.is_symlink()
    assert live(fake).python == fake
    monkeypatch.chdir(fake.parent)
    assert live("python").python == fake


def test_what_a_python_prints_at_its_start_does_not_matter(tmp_path: Path) -> None:
    python, site = make_python(tmp_path / "venv")
    install_fake_sglang(site)
    (site / "loud.pth").write_text("import sys; print('hello'); print('casebook', file=sys.stderr)")
    assert live(python).release == "0.5.99"


def test_a_launch_is_traced_in_a_live_python(fake: Path) -> None:
    launch = [*SERVER, "--model-path", "dummy", "--page-size", "7"]
    trail = trace(launch, capsule=live(fake))
    assert trail.release == "0.5.99"
    assert trail.outcome.kind is OutcomeKind.STARTS
    argument = trail["page_size"]
    assert argument.verdict is Verdict.OVERRIDDEN
    (change,) = argument.changes
    line = (
        SERVER_ARGS.splitlines().index("            self.page_size = 64  # the deciding line") + 1
    )
    assert (change.old, change.new) == (7, 64)
    assert (change.frames[0].file, change.frames[0].line) == ("srt/server_args.py", line)
    assert change.frames[0].function == "_handle_page_size"
    assert change.message is not None
    assert change.message.message == "page_size 7 is not served; 64 is used"
    assert trail["model_path"].verdict is Verdict.HONOURED


def test_a_live_python_that_rejects_a_launch(fake: Path) -> None:
    trail = trace([*SERVER, "--model-path", "dummy", "--page-size", "99"], capsule=live(fake))
    assert trail.outcome.kind is OutcomeKind.REJECTED
    assert "page_size is too large" in trail.outcome.sentence


@pytest.mark.capsule
def test_the_real_sglang_is_found_and_says_which_gpu_package_it_misses(tmp_path: Path) -> None:
    """Nothing is stubbed in live mode: on a machine without GPU packages the import itself fails."""
    python, site = make_python(tmp_path / "venv")
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    held = ensure("0.5.11")
    (site / "lab.pth").write_text(f"{held.site}\n{Path(spec.origin).parents[1]}\n")
    found = live(python)
    assert (found.release, found.sglang) == ("0.5.11", held.sglang)
    with pytest.raises(WorkerError, match=r"No module named '(torchvision|triton)'"):
        trace([*SERVER, "--model-path", "dummy"], capsule=found)


def test_this_python_has_no_sglang() -> None:
    """The lab's own environment must not, or a capsule's child could take it from there."""
    assert "has no sglang package" in refused(Path(sys.executable))
