"""Known incidents as files that anyone can run again, on any release."""

from casebook.cases.batch import run_cases
from casebook.cases.load import load_cases, named, read_case
from casebook.cases.model import Case
from casebook.cases.run import Cell, CellState, run_case
from casebook.cases.tables import as_record, detail_table, state_table

__all__ = [
    "Case",
    "Cell",
    "CellState",
    "as_record",
    "detail_table",
    "load_cases",
    "named",
    "read_case",
    "run_case",
    "run_cases",
    "state_table",
]
