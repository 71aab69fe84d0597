"""Tiny notebooks, made on the spot, so that each test shows the cells it runs; a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

if TYPE_CHECKING:
    from loopback_cluster import Cluster

MakeNotebook = Callable[..., Path]


@pytest.fixture
def make_notebook(tmp_path: Path) -> MakeNotebook:
    """``make_notebook(name, *cells, parameters=...)``: a cell that starts with '#' + space is prose."""

    def make(name: str, *cells: str, parameters: str = "", language: str = "python") -> Path:
        made = []
        for text in cells:
            made.append(new_markdown_cell(text) if text.startswith("# ") else new_code_cell(text))
        if parameters:
            made.insert(1, new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        spec = {"name": "python3", "display_name": "Python 3", "language": language}
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(new_notebook(cells=made, metadata={"kernelspec": spec}), path)
        return path

    return make


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler and two workers of this test's own."""
    from loopback_cluster import Cluster

    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers that no test kills."""
    from loopback_cluster import Cluster

    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()
