"""The command line: `tour` tells the story, `ask` asks paragraphs a question."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NoReturn

import numpy as np

from softdict import __version__, display
from softdict.encoders import CharNgrams
from softdict.mapping import SoftDict

# ---- the tour ------------------------------------------------------------------------------------

#: Told in a terminal: what stands after >>> is run, and below it stands what that returned.
TOUR = """
# 1. A dict picks one entry, or none.

>>> degrees = {6: 8.0, 12: 20.0, 18: 14.0}  # by hour of the day
>>> degrees[12]
>>> degrees[10]

# 2. A SoftDict asks every entry: score -> weigh -> blend.

How well does each key match? Weights that sum to 1 say how much each value counts.

>>> from softdict import SoftDict
>>> sd = SoftDict(degrees, temperature=9)
>>> print(sd.lookup(10))

# 3. Temperature T is a dial: a dict at one end, an average at the other.

>>> {T: round(sd.at(temperature=T)[10], 3) for T in (0, 1, 9, 99, float("inf"))}

# 4. At T = 0 the best answers alone. Best is the nearest, or the longest?

>>> keys, query = [[1, 0], [0, 1], [3, 3]], [1, 0.1]
>>> spots = SoftDict(zip(keys, ["first", "second", "third"]), temperature=0)
>>> spots[query], spots.at(similarity="dot")[query]

# 5. Weights are relative: a new entry changes every other answer.

A study group guesses what follows "I have a lot". Each word scores how much it has to say: "lot"
100, the others 1; but 1000 for the words of "Cash or credit card?", once they come in front.

>>> says = {"lot": 100} | dict.fromkeys(["Cash", "or", "credit", "card"], 1000)
>>> scores = lambda words: [[says.get(word, 1)] for word in words]
>>> group = SoftDict(encoder=scores, similarity="dot")
>>> group.update({"I": "am", "have": "to", "a": "lot", "lot": "."})
>>> dict(zip(group, group.lookup("next?").weights.round(3).tolist()))
>>> group.update(dict.fromkeys(["Cash", "or", "credit", "card"], "of"))
>>> group.lookup("next?").vote()
>>> group.at(temperature=0)["next?"]

# 6. Self-attention: every entry asks the same SoftDict, in one line.

>>> points = {"animal": [2, 0, 1], "street": [0, 2, 0]}
>>> points |= {"it": [1.5, 0.5, 0.5], "tired": [1, 0, 2]}
>>> meaning = lambda words: [points[word] for word in words]
>>> words = SoftDict(dict(animal=1, street=2, it=3, tired=4), encoder=meaning)
>>> print(words.self_attention())

Each row sums to 1. Columns need not: some are heard more than others.

Next: softdict ask "how do I write an anonymous function?"
"""


def tour() -> None:
    """Tell the story from hard to soft lookup; every number is computed here and now."""
    width, color = display.terminal()
    names: dict[str, Any] = {}
    for number, block in enumerate(paragraphs(TOUR)):
        print(end="\n" if number else "")
        code, title = block.startswith(">>> "), block.startswith("# ")
        style = display.DIM if code else display.BOLD
        for line in block.splitlines() if code else [" ".join(block.split())]:
            for part in display.wrap(line.removeprefix("# "), min(width, 80)):
                print(display.paint(part, style, color and (code or title)))
            if code:
                run(line.removeprefix(">>> "), names, width)


def run(source: str, names: dict[str, Any], width: int) -> None:
    """Run one line as Python's prompt does: show what it returns, or the error it raises."""
    try:
        code = compile(source, "<tour>", "eval")
    except SyntaxError:
        exec(source, names)
        return
    try:
        result = eval(code, names)
    except KeyError as error:
        print(f"KeyError: {error}")
    else:
        if result is not None:
            print("\n".join(display.wrap(repr(result), width)))


# ---- ask -----------------------------------------------------------------------------------------

#: What scores less shares no more than chance and a few letters with the question.
WEAK = 0.05

#: Words of a question that say nothing about its subject.
STOP_WORDS = frozenset(
    "a about an and any are as at be by can could did do does for from had has have how i in is it "
    "its me my of on or our please should so some that the their them there these they this to was "
    "we were what when where which who why will with would you your".split()
)


class Encoder:
    """Weigh the n-grams of texts: those that few of them have count most.

    Like ``CharNgrams()``, but without stop words, damped by a square root, and times the inverse
    document frequency of each bucket over the texts it was made with.

    Parameters
    ----------
    texts : sequence of str
        Over which to count.

    Examples
    --------
    >>> encode = Encoder(["the lambda form", "the class form"])
    >>> near, far = encode(["lambda", "class"]) @ encode(["what is a lambda?"])[0]
    >>> bool(near > 5 * far)
    True
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._ngrams = CharNgrams(8192)  # so many that hardly two n-grams share a bucket
        self.vectors = self._damped(texts)
        having = np.count_nonzero(self.vectors, axis=0)
        self._rarity = np.log((1 + len(texts)) / (0.5 + having)).astype(np.float32)
        self.vectors *= self._rarity

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return vectors (m, d)."""
        return self._damped(texts) * self._rarity

    def _damped(self, texts: Sequence[str]) -> Any:
        counts = np.asarray(self._ngrams([_subject(text) for text in texts]), dtype=np.float32)
        return np.sign(counts) * np.sqrt(np.abs(counts))


def _subject(text: str) -> str:
    words = re.findall(r"\w+", text)
    return " ".join([w for w in words if w.lower() not in STOP_WORDS] or words) or text


class Refused(Exception):
    """What the user asked for cannot be done: one line, exit status 2."""


def paragraphs(text: str) -> list[str]:
    r"""Split a text at blank lines.

    >>> paragraphs("one\ntwo\n\n \nthree\n")
    ['one\ntwo', 'three']
    """
    return [block.strip("\n") for block in re.split(r"\n\s*\n", text) if block.strip()]


def help_topics() -> list[tuple[str, str]]:
    """Return Python's own help topics as pairs (topic, paragraph).

    A heading, a signature, whatever has few words or ends in a colon belongs to what follows. What
    stands in several topics is an entry of the shortest.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise Refused("this Python comes without its help topics: name a FILE to ask") from None
    places: dict[str, str] = {}
    for topic, text in sorted(topics.items(), key=lambda item: len(item[1])):
        block = ""
        for part in paragraphs(re.sub(r"\n[*=-]{3,}(?=\n)", "", text)):  # no underlines
            block = f"{block}\n\n{part}" if block else part
            if len(re.findall(r"\w+", block)) > 5 and not block.endswith(":"):
                places.setdefault(block, topic)
                block = ""
    return [(topic, block) for block, topic in places.items()]


def read(path: str) -> list[tuple[str, str]]:
    """Return the paragraphs of a text file as pairs (path:line, paragraph)."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(f"{path} is not a text file: it holds bytes that are not UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(f"cannot read {path}: {reason}") from None
    if "\0" in text:
        raise Refused(f"{path} is not a text file: it holds zero bytes")
    found, line = [], 1
    for part in re.split(r"(\n\s*\n)", text):
        if part.strip():
            before = len(part) - len(part.lstrip("\n"))
            found.append((f"{path}:{line + before}", part.strip("\n")))
        line += part.count("\n")
    if not found:
        raise Refused(f"{path} is empty: there is no paragraph to ask")
    return found


def ask(question: str, files: Sequence[str], temperature: float, top: int) -> int:
    """Show which paragraphs answer a question, and the best of them; return the exit status."""
    if not question.strip():
        raise Refused('the question is empty: ask something, such as "what is a lambda?"')
    question = question.encode("utf-8", "replace").decode()
    # A topic is a title, and says what its paragraphs are about; the name of a file need not.
    entries = [entry for path in files for entry in read(path)] if files else help_topics()
    named = {entry: entry[1] if files else ": ".join(entry) for entry in entries}
    encode = Encoder(list(named.values()))
    sd = SoftDict.from_arrays(
        encode.vectors,
        [place for place, _ in named],
        labels=list(named),
        copy=False,
        encoder=encode,
        similarity="cosine",
        temperature=temperature,
        top_k=top,
    )
    why = sd.lookup(question)
    best = why.top(top)
    if best[0].score < WEAK:
        print(f"none of {len(sd)} paragraphs has much in common with the question")
        return 1
    votes = [  # sums of shares, without their rounding errors
        f"{Path(place).name} {display.percent(round(share, 12) or share)}"
        for place, share in why.vote().items()
        if share
    ]
    votes = [*votes[:3], "..."] if len(votes) > 3 else votes
    print(
        display.highlighter(
            question,
            [f"{Path(match.value).name}: {' '.join(match.key[1].split())}" for match in best],
            [match.score for match in best],
            [match.weight for match in best],
            None,
            order=range(len(best)),
            similarity=sd.similarity,
            temperature=sd.temperature,
            hard=Path(best[0].value).name,
            soft=", ".join(votes),
            effective=float(why.effective),
            count=len(sd),
            limit=top,
        )
    )
    width, color = display.terminal()
    print("\n" + display.paint(display.label(best[0].value, width), display.BOLD, color))
    for line in dedent(best[0].key[1].expandtabs()).splitlines():
        print("\n".join(display.wrap(display.printable(line), width)))
    return 0


# ---- the command line ------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Refuse, without the usage."""
        raise Refused(message)


def temperature(text: str) -> float:
    """Read a temperature.

    >>> temperature("0.05"), temperature("inf")
    (0.05, inf)
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value >= 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no temperature: a number from 0 (hard) to inf (plain mean) was expected"
        )
    return value


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = Parser(
        prog="softdict", description="Attention is a soft dictionary lookup. Without a command: the tour."
    )
    whole.add_argument("--version", action="version", version=f"softdict {__version__}")
    commands = whole.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    commands.add_parser("tour", help="from a hard lookup to a soft one, in one or two screens")
    asker = commands.add_parser(
        "ask",
        help="look a question up, softly, in text files or in Python's own help",
        description="Look a question up, softly: every paragraph answers, in the share that its "
        "likeness to the question gives it. Likeness counts the n-grams that a paragraph shares "
        "with the question, rare ones most: it knows letters, not meanings.",
        epilog='example: softdict ask "how do I write an anonymous function?"',
    )
    asker.add_argument("question", metavar="QUESTION", help="in quotes")
    asker.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],
        help="UTF-8 text, its paragraphs set apart by blank lines; without any, Python's own help",
    )
    asker.add_argument(
        "--top", metavar="K", type=count, default=8, help="how many entries share the answer (8)"
    )
    how = asker.add_mutually_exclusive_group()
    how.add_argument(
        "--temperature",
        metavar="T",
        type=temperature,
        default=0.05,
        help="from 0, the best paragraph alone, to inf, all alike (0.05)",
    )
    how.add_argument(
        "--hard",
        dest="temperature",
        action="store_const",
        const=0.0,
        help="the best paragraph alone: the same as --temperature 0",
    )
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.

    Returns
    -------
    int
        The exit status: 0; 1 where no paragraph has anything in common with the question; 2 for
        what was refused, after one line on standard error.

    Examples
    --------
    >>> main(["--version"])
    softdict ...
    0
    """
    status = 0
    try:
        chosen = parser().parse_args(argv)
        if chosen.command == "ask":
            status = ask(chosen.question, chosen.files, chosen.temperature, chosen.top)
        else:
            tour()
        print(end="", flush=True)
    except Refused as error:
        print(f"softdict: {display.printable(str(error))}", file=sys.stderr)
        return 2
    except MemoryError:
        print("softdict: this is too much text for the memory of this machine", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough: keep Python from flushing once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except SystemExit as done:  # --help, --version
        return int(done.code or 0)
    return status
