"""The counter of lines and imports, on a text with known figures."""

from benchmarks import size

TEXT = '''"""Two lines
of text."""

import os


def function(a):
    """One line."""
    import json

    # why
    return json.dumps(
        a
    )
'''


def test_lines_are_code_docstrings_or_imports():
    figures = size.file_figures(TEXT)
    assert (figures["lines"], figures["code"], figures["docstrings"], figures["imports"]) == (14, 4, 3, 2)
    assert figures["tokens"] == len(
        ["def", "function", "(", "a", ")", ":", "return", "json", ".", "dumps", "(", "a", ")"]
    )
    assert figures["imports_in_functions"] == 1
