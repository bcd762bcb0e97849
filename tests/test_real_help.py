"""The example that asks Python's help counts rightly, and its encoders find what they should.

With the marker `weights` it reads those of a real Transformer, which must be installed.
"""

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from softdict import cli

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import real_help  # noqa: E402

COUNTS = re.compile(r"^(\w+) +(hard|soft) +first +(\d+), among three +(\d+) of 20$", re.MULTILINE)


def counted(printed):
    """Return what was printed: how often the right topic was first, and among the first three."""
    return {(name, how): (int(first), int(three)) for name, how, first, three in COUNTS.findall(printed)}


def test_the_questions_have_answers():
    assert len(real_help.QUESTIONS) == 20
    assert all(not set(topics).isdisjoint(wanted) for wanted in real_help.QUESTIONS.values())


def test_counting():
    wanted = list(real_help.QUESTIONS.values())
    assert real_help.right([names[:1] for names in wanted], 1) == 20
    assert real_help.right([["nothing", *names[-1:]] for names in wanted], 1) == 0
    assert real_help.right([["nothing", *names[-1:]] for names in wanted], 2) == 20


def test_rankings_hard_and_soft():
    texts, names = ["aa", "ab", "b"], ["one", "one", "two"]
    sd = real_help.softened(texts, names, lambda words: [[w.count("a"), w.count("b")] for w in words])
    ranked = real_help.rankings(sd, ["aaa", "bbb"])
    assert ranked == {"hard": [["one", "two"], ["two", "one"]], "soft": [["one", "two"], ["two", "one"]]}
    even = real_help.rankings(sd.at(temperature=float("inf")), ["bbb"])
    assert even == {"hard": [["two", "one"]], "soft": [["one", "two"]]}  # two votes against one


def test_letters_and_words_find_some_topics(capsys):
    """Python's help has other texts in each version."""
    pytest.importorskip("sklearn")
    for name in ("ngram", "tfidf"):
        real_help.compare(name, cli.help_topics())
    found = counted(capsys.readouterr().out)
    assert set(found) == {(name, how) for name in ("ngram", "tfidf") for how in ("hard", "soft")}
    assert all(first >= 2 and three >= 6 for first, three in found.values())


@pytest.mark.weights
def test_a_sentence_encoder_finds_more(capsys):
    real_help.main()
    printed = capsys.readouterr().out
    found = counted(printed)
    assert len(found) == 6
    best = max(three for _, three in found.values())
    assert best == found["minilm", "soft"][1]
    assert best >= 13
    whole = dict(zip(real_help.WHOLE, printed.splitlines()[-3:], strict=True))
    for question, winner in zip(real_help.WHOLE, ["lambda", "await", "continue"], strict=True):
        assert whole[question].startswith(f"{question} {winner} ")
    assert whole["stop the loop early"].split()[-4] == "break"  # the right one comes second
    if sys.version_info[:2] == (3, 11):
        doc = real_help.__doc__
        assert counted(re.sub("^ +", "", doc, flags=re.MULTILINE)) == found
        assert all(line in doc for line in printed.splitlines())
