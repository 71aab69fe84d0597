"""Write ``data/flags.json``: for each flag, in which releases it exists and what it sets there.

Run: ``.venv/bin/python tools/write_flags.py``. Builds every capsule and asks each release's parser.
"""

from __future__ import annotations

import json

from tqdm.auto import tqdm

from casebook import capsule as capsules
from casebook.catalog.gpus import gpu
from casebook.catalog.releases import load_releases
from casebook.paths import data_dir
from casebook.resolution import pool


def main() -> None:
    releases = [r.version for r in sorted(load_releases().values())]
    device = gpu("B200").as_device()
    known: dict[str, dict[str, str]] = {}  # flag -> release -> dest
    for release in tqdm(releases):
        worker = pool.worker(capsules.ensure(release), device, {})
        line = worker.call("resolve", argv=["--model-path", "dummy"])["command_line"]
        for dest, options in line["flags"].items():
            for option in options:
                if option.startswith("--"):
                    field = line["renamed"].get(dest, dest)
                    known.setdefault(option, {})[release] = field
    flags = {flag: spans(by_release, releases) for flag, by_release in sorted(known.items())}
    rows = ",\n".join(f"  {json.dumps(flag)}: {json.dumps(found)}" for flag, found in flags.items())
    head = json.dumps("each release's own parser, asked by tools/write_flags.py")
    text = f'{{"source": {head}, "columns": ["first", "last", "dest"], "flags": {{\n{rows}\n}}}}\n'
    (data_dir() / "flags.json").write_text(text, "utf-8")
    print(f"{len(flags)} flags of {len(releases)} releases")


def spans(by_release: dict[str, str], releases: list[str]) -> list[list[str]]:
    """Runs of neighbouring releases in which a flag sets the same argument."""
    found: list[list[str]] = []
    previous = -2
    for position, release in enumerate(releases):
        dest = by_release.get(release)
        if dest is None:
            continue
        if found and position == previous + 1 and found[-1][2] == dest:
            found[-1][1] = release
        else:
            found.append([release, release, dest])
        previous = position
    return found


if __name__ == "__main__":
    main()
