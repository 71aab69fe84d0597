"""The dry run: a release's own code sizes and builds its memory pools, on memory that is only counted."""
