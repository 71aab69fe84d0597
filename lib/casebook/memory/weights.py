"""What the weights of one rank weigh, where the release's own model class cannot be asked.

The first source is always SGLang: a dry run constructs the release's model and counts its parameters.
Some checkpoints' configurations in the catalog are not complete enough for that (a quantization's list
of exempted layers, say); then the checkpoint's size, divided among the ranks, must do.
"""

from __future__ import annotations

from casebook.catalog.models import ModelFacts
from casebook.errors import MemoryPlanError


def estimate_bytes(facts: ModelFacts, tp_size: int, pp_size: int = 1) -> int:
    """Bytes of one rank from the checkpoint's bytes, or its parameters in two bytes each.

    Tensor parallel ranks share all that is large; what each holds whole (norms, routers, a vision
    tower under data parallelism) is small beside it and not counted. Raises MemoryPlanError where the
    catalog knows neither figure.
    """
    if facts.checkpoint_bytes is not None:
        return facts.checkpoint_bytes // (tp_size * pp_size)
    plain = facts.hf_quant_config() is None and "quantization_config" not in facts.config()
    if facts.parameters is not None and plain:
        return 2 * facts.parameters // (tp_size * pp_size)
    raise MemoryPlanError(
        f"The weights of {facts.name} cannot be told: the catalog has no checkpoint_bytes for it and "
        "its model could not be constructed; give weights_bytes."
    )
