"""Running uv: its environment, its output, and what is made of its failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from casebook.capsule import ensure, installed
from casebook.capsule.progress import Progress
from casebook.capsule.uvtool import explain, find_uv, run_uv
from casebook.errors import CapsuleError, IndexUnreachableError


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("error: Request failed after 3 retries in 5.3s", "check the network"),
        ("Failed to fetch: `http://127.0.0.1:9/dep/`", "UV_DEFAULT_INDEX to a mirror"),
        ("dns error: failed to lookup address information", "CASEBOOK_CACHE"),
        ("HTTP status client error (404 Not Found)", "casebook.capsule.live"),
        ("No solution found\nhint: network connectivity is disabled", "check the network"),
        ("error sending request\ninvalid peer certificate: UnknownIssuer", "SSL_CERT_FILE"),
    ],
)
def test_an_index_that_does_not_answer_and_the_ways_out(said: str, sentence: str) -> None:
    error = explain(said.splitlines(), 2, "installing it")
    assert isinstance(error, IndexUnreachableError)
    assert "did not answer while installing it" in str(error)
    assert sentence in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("Failed to download `dep`\nHash mismatch for `dep==1`", "another file under that name"),
        ("Failed to download `dep`\nNo space left on device (os error 28)", "UV_CACHE_DIR"),
        ("Disk quota exceeded (os error 122)", "disk filled up"),
        ("No solution found when resolving dependencies", "lacks a file the lock names"),
        ("dep was not found in the package registry", "a mirror may be incomplete"),
        ("kaboom", "uv failed (exit code 2) while installing it: kaboom"),
        ("", "it printed nothing"),
    ],
)
def test_other_failures_are_told_apart(said: str, sentence: str) -> None:
    error = explain(said.splitlines(), 2, "installing it")
    assert not isinstance(error, IndexUnreachableError)
    assert sentence in str(error)
    assert "\n" not in str(error)


def test_the_password_of_an_index_is_not_repeated() -> None:
    said = "Failed to fetch: `https://me:hunter2@mirror.example/simple/dep/`"
    message = str(explain([said], 2, "installing it"))
    assert "hunter2" not in message
    assert "https://mirror.example" in message


def test_uv_is_the_one_of_the_environment_and_its_absence_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_uv().is_file()
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(CapsuleError, match="pip install uv"):
        find_uv()


def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "uv"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setattr("casebook.capsule.uvtool.find_uv", lambda: path)


def test_a_uv_that_cannot_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(tmp_path, monkeypatch, "not a program")
    with pytest.raises(CapsuleError, match=r"uv could not be started while testing .*pip install"):
        run_uv(["--version"], what="testing", cwd=tmp_path)


def test_settings_of_the_users_own_projects_do_not_reach_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(tmp_path, monkeypatch, "#!/bin/sh\necho args \"$@\"\nenv | grep '^UV_' | sort\n")
    for name in ("UV_CONSTRAINT", "UV_NO_VERIFY_HASHES", "UV_EXCLUDE_NEWER", "UV_PYTHON"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mirror.example/simple")
    lines: list[str] = []
    run_uv(["pip", "install"], what="testing", cwd=tmp_path, on_line=lines.append)
    assert lines[0] == "args --no-progress --color never pip install"
    assert "UV_DEFAULT_INDEX=https://mirror.example/simple" in lines
    assert not [line for line in lines if line.endswith("=1")]


def test_progress_follows_what_uv_prints(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("1.2.3", 3, show=True) as line:
        line.step("resolving dependencies")
        for said in (
            "Resolved 3 packages in 2ms",
            "Downloading numpy (15.1MiB)",
            "Prepared 3 packages in 1.2s",
            "Installed 3 packages in 10ms",
            " + numpy==1",
        ):
            line.uv_line(said)
    err = capfd.readouterr().err
    assert "Capsule 1.2.3: resolving dependencies" in err
    assert "3/3 packages" in err
    assert err.count("\n") == 1


def test_no_progress_is_made_where_none_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("1.2.3", 3, show=False) as line:
        line.step("resolving")
        line.uv_line("Downloading numpy (15.1MiB)")
        line.uv_line("Installed 3 packages in 10ms")
    assert capfd.readouterr() == ("", "")


def test_an_unreachable_index_is_told_by_the_real_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("CASEBOOK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(IndexUnreachableError, match=r"SGLang 0\.5\.11.*UV_DEFAULT_INDEX") as caught:
        ensure("0.5.11")
    assert "http://127.0.0.1:9" in str(caught.value)
    assert installed() == []
    assert [p.name for p in (tmp_path / "cache" / "capsules").iterdir()] == [".locks"]
