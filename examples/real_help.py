"""Python's own help, asked twenty questions in plain English, with three encoders side by side.

Every paragraph of a help topic is an entry: its text is the key, the topic's name the value. The encoders are
those of `softdict ask --encoder`: `ngram` compares letters, `tfidf` words (by scikit-learn), `minilm` is the
sentence encoder of `real_transformer.py`, which takes some two minutes. What is not installed is left out.

Hard, topics stand in the order of their best paragraphs. Soft, all paragraphs vote for theirs, by weight.
Counted is how often a right topic comes first, and how often among three. Questions and right topics, in
`help_questions.json`, were written down before anything answered them. Python 3.11, whose help has 1448
paragraphs, prints

    ngram   hard  first  6, among three 10 of 20
    ngram   soft  first  5, among three 10 of 20
    tfidf   hard  first  4, among three 11 of 20
    tfidf   soft  first  4, among three  9 of 20
    minilm  hard  first 11, among three 14 of 20
    minilm  soft  first 11, among three 15 of 20

Each paragraph is encoded behind the title of its topic. That was chosen among three ways after a look at
these numbers, so the last line flatters: behind the topic's mere name, minilm has 9 and 14 soft; a paragraph
by itself has 7 and 14.

A sentence encoder can be asked for whole topics, too, of which it reads the first page. The last answer is
wrong, and the soft one tells that there is another:

    how do I write an anonymous function? lambda 0.50 typesfunctions 0.16 bltin-null-object 0.09
    wait for a coroutine to finish await 0.98 async 0.02 continue 0.00
    stop the loop early continue 0.57 break 0.32 while 0.08
"""

import json
from pathlib import Path
from pydoc_data.topics import topics

import real_transformer

from softdict import SoftDict, cli

QUESTIONS = json.loads(Path(__file__).with_name("help_questions.json").read_text(encoding="utf-8"))
WHOLE = ["how do I write an anonymous function?", "wait for a coroutine to finish", "stop the loop early"]


def softened(texts, names, encoder):
    """Return a SoftDict from texts to the names of their topics."""
    return SoftDict(zip(texts, names, strict=True), encoder=encoder, similarity="cosine", temperature=0.05)


def rankings(sd, questions):
    """Return the topics for each question, best first, in two ways."""
    why = sd.lookup(questions)
    by_best = [list(dict.fromkeys(match.value for match in matches)) for matches in why.top(len(sd))]
    return {"hard": by_best, "soft": [list(votes) for votes in why.vote()]}


def right(ranked, count):
    """Return how many questions have a right topic among the first so many."""
    pairs = zip(ranked, QUESTIONS.values(), strict=True)
    return sum(not set(found[:count]).isdisjoint(wanted) for found, wanted in pairs)


def compare(name, entries):
    """Print how often the right topic is first and among the first three."""
    texts = [entry.described() for entry in entries]
    sd = softened(texts, [entry.key for entry in entries], cli.ENCODERS[name](texts))
    for how, ranked in rankings(sd, list(QUESTIONS)).items():
        first, three = right(ranked, 1), right(ranked, 3)
        print(f"{name:7} {how}  first {first:2}, among three {three:2} of {len(ranked)}")


def main():
    entries = cli.help_topics()
    for name in cli.ENCODERS:
        try:
            compare(name, entries)
        except cli.Refused as missing:
            print(f"{name:7} {missing}")
    try:
        model = real_transformer.load()
    except (FileNotFoundError, ValueError):
        return
    sd = softened(topics.values(), topics, model)
    for question in WHOLE:
        shares = list(sd.lookup(question).vote().items())[:3]
        print(question, *(f"{name} {share:.2f}" for name, share in shares))


if __name__ == "__main__":
    main()
