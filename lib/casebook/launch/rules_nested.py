"""Rules about text that one shell hands to another: what the outer one took before the inner could."""

from __future__ import annotations

from collections.abc import Iterator

from casebook.launch.rules_surroundings import ENVIRONMENT
from casebook.launch.suspicion import Suspicion, error, warning
from casebook.launch.through import Found


def suspicions(found: Found) -> Iterator[Suspicion]:
    """Variables expanded too early, and environments of another process."""
    assigned = {
        name
        for stages, reading in found.readings
        if len(stages) > 1
        for name, value in reading.state.variables.items()
        if value is not None and not value.exported
    }
    for _, reading in found.readings:
        for invocation in reading.invocations:
            for empty in invocation.empties:
                if empty.name in assigned and invocation.name.rpartition("/")[2] in _HANDS_ON:
                    yield error(
                        "expanded-too-early",
                        (empty.at, empty.at + len(empty.name) + 1),
                        f"${empty.name} is set in the text for the other shell, but the first shell expands it, to nothing",
                        "what it stands for is gone before the other shell reads the text",
                        "quote the delimiter (`<<'EOF'`), use single quotes, or write a backslash before the dollar sign",
                    )
            name = invocation.name.rpartition("/")[2]
            action = invocation.words[1].text if len(invocation.words) > 1 else ""
            if name == "systemctl" and action in (
                "start",
                "restart",
                "reload-or-restart",
                "enable",
            ):
                for variable, value in invocation.env.items():
                    if value.value.start >= 0 and (
                        ENVIRONMENT.fullmatch(variable) or not found.servers
                    ):
                        yield warning(
                            "environment-not-passed",
                            (value.value.start, value.value.end),
                            f"{variable} is exported here, but systemd starts the service",
                            "a service gets its unit's Environment=, not that of this shell (nor of ~/.bashrc)",
                            f"put it in the unit: Environment={variable}=...",
                        )


_HANDS_ON = frozenset(
    {
        "ssh",
        "bash",
        "sh",
        "zsh",
        "dash",
        "docker",
        "podman",
        "kubectl",
        "cat",
        "tee",
        "su",
        "tmux",
        "srun",
        "sudo",
    }
)
