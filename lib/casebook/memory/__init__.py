"""What a launch needs in bytes."""

from casebook.memory.state import StateSlot, gdn_slot

__all__ = ["StateSlot", "gdn_slot"]
