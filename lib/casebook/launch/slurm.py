"""What ``#SBATCH`` lines do to a launch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from casebook.launch.source import Source
from casebook.launch.suspicion import Suspicion, warning


def suspicions(source: Source) -> Iterator[Suspicion]:
    """Directives that Slurm does not read, and those that close the environment."""
    commands = False
    for match in re.finditer(r"(?m)^.*$", source.text):
        line = match[0]
        at = (match.start(), max(match.end(), match.start() + 1))
        if line.startswith("#SBATCH"):
            if commands:
                yield warning(
                    "sbatch-after-command",
                    at,
                    "this #SBATCH line stands behind the first command",
                    "Slurm reads directives only up to there; this one is a comment",
                    "move it to the top",
                )
            if re.search(r"--export[= ](?:NONE|NIL)\b", line):
                yield warning(
                    "environment-not-passed",
                    at,
                    "--export=NONE closes the job's environment",
                    "variables exported where the job is submitted do not reach the server",
                    "name them: --export=ALL,NAME=value",
                )
        elif line.strip() and not line.lstrip().startswith("#"):
            commands = True
