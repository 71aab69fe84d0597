"""Which machine and Python can have a capsule, and with which of SGLang's wheels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from casebook.capsule.build import plan
from casebook.capsule.host import FOREIGN_PLATFORM, Host, check, sglang_platform, this_host
from casebook.capsule.lockfile import read_lock
from casebook.catalog.releases import release
from casebook.errors import CapsuleError

LINUX = Host("linux", "x86_64", (2, 35), (3, 11))
ARM = replace(LINUX, machine="aarch64")
OLD = replace(LINUX, glibc=(2, 31))
MAC = Host("darwin", "arm64", None, (3, 12))
PURE, COMPILED = "0.5.10", "0.5.11"


@pytest.mark.parametrize("version", [PURE, COMPILED])
@pytest.mark.parametrize("host", [LINUX, ARM, OLD, MAC])
def test_served_machines(version: str, host: Host) -> None:
    check(release(version), host)


def test_this_machine_is_served() -> None:
    check(release(COMPILED), this_host())


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (replace(LINUX, glibc=None), "linux on x86_64 without glibc"),
        (replace(LINUX, machine="riscv64"), "linux on riscv64, for which"),
        (replace(MAC, machine="x86_64"), "darwin on x86_64"),
        (Host("win32", "amd64", None, (3, 11)), "in WSL"),
        (replace(LINUX, implementation="pypy"), "this is pypy 3.11; run the lab with CPython"),
        (replace(LINUX, python=(3, 9)), "cannot be installed for Python 3.9"),
        (replace(LINUX, python=(3, 10)), "CPython 3.11 to 3.13, and this is 3.10"),
        (replace(LINUX, python=(3, 14)), "CPython 3.11 to 3.13, and this is 3.14"),
    ],
)
def test_others_are_refused_in_one_sentence(host: Host, sentence: str) -> None:
    with pytest.raises(CapsuleError, match="run the") as caught:
        check(release(PURE), host)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_python_without_a_compiled_wheel_is_told_which_have_one() -> None:
    found = release(COMPILED)
    with pytest.raises(CapsuleError, match=f"wheels for {', '.join(found.pythons)}"):
        check(found, replace(LINUX, python=(3, 19)))


@pytest.mark.parametrize(
    ("version", "host", "platform"),
    [
        (PURE, LINUX, None),
        (PURE, MAC, None),
        (COMPILED, LINUX, None),
        (COMPILED, ARM, None),
        (COMPILED, replace(LINUX, glibc=(2, 34)), None),
        (COMPILED, OLD, FOREIGN_PLATFORM),
        (COMPILED, MAC, FOREIGN_PLATFORM),
    ],
)
def test_the_linux_wheel_serves_where_there_is_none(
    version: str, host: Host, platform: str | None
) -> None:
    assert sglang_platform(release(version), host) == platform
    dependencies, sglang = plan(release(version), read_lock(version), host)
    assert dependencies.options == ()
    assert sglang.options[:2] == ("--link-mode", "copy")
    assert sglang.options[2:] == (("--python-platform", platform) if platform else ())
    assert sglang.requirements.startswith(f"sglang=={version} ")
    assert "\nsglang==" not in dependencies.requirements
