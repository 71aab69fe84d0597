"""Shared by the DFlash tests: one thread (the machine is shared), quiet transformers, tiny targets."""

from __future__ import annotations

import pytest
import torch
import transformers

from casebook.dflash.target import HFTarget
from casebook.dflash.tiny import tiny_config, tiny_hybrid, tiny_qwen3

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def qwen3() -> HFTarget:
    return tiny_qwen3(tiny_config(theta=1e4))


@pytest.fixture(scope="session")
def hybrid() -> HFTarget:
    return tiny_hybrid(tiny_config(theta=1e4))
