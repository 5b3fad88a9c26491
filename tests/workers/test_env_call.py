"""Texts about calls of environments that have not returned."""

import pytest

from jsrl.workers.base import EnvCall


class Stepping:
    spec = None

    def where(self):
        return "slot 0, episode 2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("environment 'a:B'", "environment 'a:B' (slot 0, episode 2) did not return"),
        (
            "step of environment 'a:B', group 1",
            "step of environment 'a:B', group 1 (slot 0, episode 2), did not return",
        ),
    ],
)
def test_a_call_reads_as_the_subject_of_a_sentence(text, sentence):
    assert f"{EnvCall(text, Stepping())} did not return" == sentence
