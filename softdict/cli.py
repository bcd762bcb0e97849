"""The command line: `tour` tells the story, `ask` asks paragraphs a question, `play` writes the playground.

An index that `ask` saves is a SoftDict: its names are (place, paragraph), its values (key, title, encoder).
The encoder is made again from that: n-grams are counted in the stored vectors, words in the stored texts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple, NoReturn

import numpy as np

from softdict import __version__, display
from softdict.encoders import CharNgrams, as_encoder
from softdict.mapping import SoftDict
from softdict.playground import play

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


# ---- what is asked --------------------------------------------------------------------------------

#: The files of a folder that are read, and those among them with headings.
TEXTS, TITLED = (".md", ".txt", ".rst"), (".md", ".rst")

#: Lines of a paragraph that may have been meant as many.
MANY = 5


class Refused(Exception):
    """What the user asked for cannot be done: one line, exit status 2."""


class Entry(NamedTuple):
    """A paragraph."""

    key: str  # a topic or a heading; the place where there is none
    place: str
    text: str
    title: str = ""  # says what the paragraph is about, which the name of a file need not

    def described(self) -> str:
        """Return what is encoded."""
        return f"{self.title}: {self.text}" if self.title else self.text


def paragraphs(text: str) -> list[str]:
    r"""Split a text at blank lines.

    >>> paragraphs("one\ntwo\n\n \nthree\n")
    ['one\ntwo', 'three']
    """
    return [block.strip("\n") for block in re.split(r"\n\s*\n", text) if block.strip()]


def help_topics() -> list[Entry]:
    """Return the paragraphs of Python's own help topics.

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
    titles = {topic: text.lstrip().partition("\n")[0] for topic, text in topics.items()}
    return [Entry(topic, f"help({topic!r})", block, titles[topic]) for block, topic in places.items()]


def read(path: str) -> list[Entry]:
    """Return the paragraphs of a text file; those of Markdown under their headings."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(f"{path} is not a text file: it holds bytes that are not UTF-8") from None
    except (OSError, ValueError) as error:
        raise unusable("read", path, error) from None
    if "\0" in text:
        raise Refused(f"{path} is not a text file: it holds zero bytes")
    kind = Path(path).suffix.lower()
    titled, underlines = kind in TITLED, "=-" if kind == ".md" else "=~^*-"
    found: list[Entry] = []
    block: list[str] = []
    heading, fenced, lines = "", "", [*text.split("\n"), ""]
    for number, line in enumerate(lines, 1):
        fence = kind == ".md" and re.fullmatch(r"\s*(`{3,}(?=[^`]*$)|~{3,})\s*(.*)", line)
        if fence and not fenced:  # code between two fences is one block, and its # no heading
            fenced = fence[1]
        elif fence and fence[1].startswith(fenced) and not fence[2]:
            fenced = ""
        title, rule = None, False
        if titled and not fenced and not fence:
            rule = bool(re.fullmatch(r"([=~^*-])\1{2,}", line.strip()))
            if rule and len(block) == 1 and line.strip()[0] in underlines:
                title = block.pop().strip()
            elif match := re.fullmatch(r" {0,3}#{1,6}\s+(.*)", line):
                title = match[1].strip()
                rest = title.rstrip("#")  # closing ones stand apart: # About C#
                title = title if rest[-1:].strip() else rest.strip()
        if title is None and not rule and (line.strip() or fenced) and number < len(lines):
            block.append(line)
            continue
        if any(map(str.strip, block)):
            place = f"{path}:{number - len(block)}"
            found.append(Entry(heading or place, place, "\n".join(block).rstrip("\n"), heading))
        heading, block = heading if title is None else title, []
    if not found:
        raise Refused(f"{path} is empty: there is no paragraph to ask")
    if len(found) == 1 and (count := found[0].text.count("\n") + 1) >= MANY:
        print(
            f"softdict: note: {display.printable(path)} is one paragraph of {count} lines: blank lines set "
            "paragraphs apart",
            file=sys.stderr,
        )
    return found


def gather(paths: Sequence[str]) -> list[Entry]:
    """Return the paragraphs of files, and of all texts in folders."""
    found: list[Entry] = []
    for path in paths:
        if not os.path.isdir(path):
            found += read(path)
            continue
        for file in walk(path):
            try:
                found += read(file)
            except Refused as error:  # one of many
                print(f"softdict: left out: {display.printable(str(error))}", file=sys.stderr)
    if not found:
        raise Refused(f"{', '.join(paths)}: no {', '.join(TEXTS)} file with a paragraph to ask in there")
    return found


def walk(folder: str) -> Iterator[str]:
    """Go through the texts of a folder and the folders in it, but for hidden ones."""

    def refuse(error: OSError) -> NoReturn:
        raise unusable("read", error.filename, error) from None

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = os.path.join(where, name)
            if name.startswith(".") or not name.lower().endswith(TEXTS):
                continue
            if os.path.isfile(file) or not os.path.exists(file):  # a pipe has no end; a broken link is told
                yield file


def unusable(what: str, path: str, error: Exception) -> Refused:
    """Return what is said of a path that cannot be read or written."""
    return Refused(f"cannot {what} {path}: {getattr(error, 'strerror', None) or error}")


# ---- encoders --------------------------------------------------------------------------------------

#: Words of a question that say nothing about its subject.
STOP_WORDS = frozenset(
    "a about an and any are as at be by can could did do does for from had has have how i in is it "
    "its me my of on or our please should so some that the their them there these they this to was "
    "we were what when where which who why will with would you your".split()
)


def width(count: int) -> int:
    """Return how many numbers a text gets: with so many hardly two n-grams share a bucket; 1 GiB for all."""
    return max(1, min(8192, 2**28 // max(count, 1)))


class Encoder:
    """Weigh the n-grams of texts: those that few of them have count most.

    Like ``CharNgrams()``, but without stop words, damped by a square root, and times the inverse
    document frequency of each bucket over the texts it was made with.

    Parameters
    ----------
    texts : sequence of str
        Over which to count.
    vectors : array (n, d), optional
        What was made of these texts before, in which to count instead.

    Examples
    --------
    >>> encode = Encoder(["the lambda form", "the class form"])
    >>> near, far = encode(["lambda", "class"]) @ encode(["what is a lambda?"])[0]
    >>> bool(near > 5 * far)
    True
    """

    def __init__(self, texts: Sequence[str], vectors: Any = None) -> None:
        self._ngrams = CharNgrams(width(len(texts)) if vectors is None else vectors.shape[1])
        self.vectors = as_encoder(self._damped)(texts) if vectors is None else vectors
        having = np.count_nonzero(self.vectors, axis=0)
        self._rarity = np.log((1 + len(texts)) / (0.5 + having)).astype(np.float32)  # above 0
        if vectors is None:
            self.vectors *= self._rarity

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return vectors (m, d)."""
        return self._damped(texts) * self._rarity

    def _damped(self, texts: Sequence[str]) -> Any:
        return np.sqrt(self._ngrams([_subject(text) for text in texts]).astype(np.float32))


def _subject(text: str) -> str:
    words = re.findall(r"\w+", text)
    return " ".join([w for w in words if w.lower() not in STOP_WORDS] or words) or text


def tfidf(texts: Sequence[str]) -> Any:
    """Return scikit-learn's vectorizer of words, fitted to texts."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise Refused('--encoder tfidf needs scikit-learn: pip install "softdict[text]"') from None
    encoder = TfidfVectorizer(
        sublinear_tf=True, stop_words=sorted(STOP_WORDS), max_features=width(len(texts)), dtype=np.float32
    )
    try:
        return encoder.fit(texts)
    except ValueError:
        raise Refused("--encoder tfidf found no word to count: try --encoder ngram") from None


def minilm() -> Any:
    """Return the sentence encoder of examples/real_transformer.py; an installed softdict has a copy."""
    here = Path(__file__).parent
    pages = here / "data" / "real_transformer.py", here.parent / "examples" / "real_transformer.py"
    page = next(filter(Path.is_file, pages), None)
    spec = page and spec_from_file_location("real_transformer", page)
    if not spec or not spec.loader:
        raise Refused(
            "--encoder minilm needs examples/real_transformer.py, which is not here: install softdict"
        )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return module.load()
    except FileNotFoundError:
        raise Refused(f"--encoder minilm needs its weights: {module.COMMAND}") from None
    except ValueError as error:
        raise Refused(" ".join(str(error).split())) from None


#: From texts, and perhaps the vectors that were made of them before, to an encoder.
ENCODERS: dict[str, Callable[..., Any]] = {
    "ngram": Encoder,
    "tfidf": lambda texts, _=None: tfidf(texts),
    "minilm": lambda *_: minilm(),
}


# ---- ask -----------------------------------------------------------------------------------------

#: The temperature where none is chosen.
USUAL = 0.05

#: What scores less shares no more than chance and a few letters with the question.
WEAK = 0.05


def indexed(entries: Sequence[Entry], kind: str) -> SoftDict:
    """Return a SoftDict of paragraphs."""
    named = {(entry.place, entry.text): entry for entry in entries}
    texts = [entry.described() for entry in named.values()]
    encoder = ENCODERS[kind](texts)
    return SoftDict.from_arrays(
        encoder.vectors if isinstance(encoder, Encoder) else as_encoder(encoder)(texts),
        [(entry.key, entry.title, kind) for entry in named.values()],
        labels=list(named),
        copy=False,
        encoder=encoder,
        similarity="cosine",
    )


def opened(path: str, **given: Any) -> SoftDict:
    """Return the SoftDict of a file; TypeError where it lacks a function that the file does not keep."""
    try:
        return SoftDict.load(path, **given)
    except OSError as error:
        raise unusable("read", path, error) from None
    except (ValueError, ImportError) as error:
        raise Refused(str(error)) from None


def loaded(path: str) -> SoftDict | None:
    """Return a SoftDict that `indexed` has made, from its file; None where the file holds another one."""
    try:
        sd = opened(path, encoder=None)
        entries = [Entry(key, place, text, title) for (place, text), (key, title, _) in sd.hard.items()]
        (kind,) = {kind for *_, kind in sd.hard.values()}
        whole = all(type(part) is tuple for item in sd.hard.items() for part in item)
        whole &= sd.key_vectors.ndim == 2 and all(isinstance(part, str) for each in entries for part in each)
        if not whole:
            return None
        encoder = ENCODERS[kind]([entry.described() for entry in entries], sd.key_vectors)
        fits = as_encoder(encoder)(["?"]).shape[1:] == sd.key_vectors.shape[1:]
    except (KeyError, TypeError, ValueError):
        return None
    if not fits:
        raise Refused(f"{path} was made with another version of its encoder, {kind}: save it again")
    sd.encoder = encoder
    return sd


def ask(chosen: argparse.Namespace) -> int:
    """Show which paragraphs answer a question, and the best of them; return the exit status."""
    if not chosen.question.strip():
        raise Refused('the question is empty: ask something, such as "what is a lambda?"')
    question = chosen.question.encode("utf-8", "replace").decode()
    if chosen.load is not None:
        if chosen.files or chosen.encoder:
            raise Refused("--load brings its paragraphs and its encoder: leave out FILE and --encoder")
        index = loaded(chosen.load)
        if index is None:
            raise Refused(
                f"{chosen.load} is no index that softdict ask --save has made: name the files themselves "
                f"and --save them, or ask it in Python: SoftDict.load({chosen.load!r})"
            )
        sd = index
    else:
        sd = indexed(gather(chosen.files) if chosen.files else help_topics(), chosen.encoder or "ngram")
    if chosen.save is not None:
        try:
            sd.save(chosen.save)
        except OSError as error:
            raise unusable("write", chosen.save, error) from None
        except ImportError as error:
            raise Refused(str(error)) from None
    sd = sd.at(similarity="cosine", temperature=chosen.temperature, top_k=chosen.top)
    why = sd.lookup(question)
    best = why.top(chosen.top) if why.scores.max() >= WEAK else []
    if chosen.json:
        print(as_json(question, best, float(why.effective)))
    elif best:
        show(question, best, why, sd)
    else:
        print(f"none of {len(sd)} paragraphs has much in common with the question")
    return 0 if best else 1


def as_json(question: str, best: Sequence[Any], effective: float) -> str:
    """Return an answer for other programs."""
    entries = [
        {"key": match.value[0], "place": match.key[0], "value": match.key[1]}
        | {"score": float(match.score), "weight": float(match.weight)}
        for match in best
    ]
    winner = entries[0]["key"] if entries else None
    answer = {"question": question, "winner": winner, "effective": effective if entries else 0.0}
    return json.dumps(answer | {"entries": entries}, indent=1)


def show(question: str, best: Sequence[Any], why: Any, sd: SoftDict) -> None:
    """Print the highlighter, and the best paragraph."""
    # All that share the answer are among the best. Of a place that is the key, the folder is left out.
    names = {x.value: x.value[0] if x.value[1] else Path(x.value[0]).name for x in best}
    votes = [  # sums of shares, without their rounding errors
        f"{names[value]} {display.percent(round(share, 12) or share)}"
        for value, share in why.vote().items()
        if share
    ]
    votes = [*votes[:3], "..."] if len(votes) > 3 else votes
    print(
        display.highlighter(
            question,
            [f"{names[match.value]}: {' '.join(match.key[1].split())}" for match in best],
            [match.score for match in best],
            [match.weight for match in best],
            None,
            order=range(len(best)),
            similarity=sd.similarity,
            temperature=sd.temperature,
            hard=names[best[0].value],
            soft=", ".join(votes),
            effective=float(why.effective),
            count=len(sd),
            limit=len(best),
            # Who asks for an end of the dial, as --hard does, wants no other.
            advice="--temperature makes it {}" if 0 < sd.temperature < math.inf else "",
        )
    )
    width, color = display.terminal()
    place, text = best[0].key
    print("\n" + display.paint(display.label(place, width), display.BOLD, color))
    for line in dedent(text.expandtabs()).splitlines():
        print("\n".join(display.wrap(display.printable(line), width)))


# ---- the playground --------------------------------------------------------------------------------


def playground_page(chosen: argparse.Namespace) -> None:
    """Write the playground, over an index or another SoftDict that was saved where one is named."""
    sd = None
    if chosen.load is not None:
        index = loaded(chosen.load)
        try:
            sd = opened(chosen.load) if index is None else captioned(index)
        except TypeError as error:
            raise Refused(f"{error} That takes Python: play(SoftDict.load(...), {chosen.page!r})") from None
    try:
        play(sd, chosen.page, chosen.query)
    except OSError as error:
        raise unusable("write", chosen.page, error) from None
    except KeyError as error:
        raise Refused(error.args[0]) from None
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from None


def captioned(index: SoftDict) -> SoftDict:
    """Return the paragraphs of an index as values, under short names, to be asked as `ask` does."""
    names = [f"{title} {Path(place).name}".strip() for (place, _), (_, title, _) in index.hard.items()]
    if len(set(names)) < len(names):
        names = [f"{i}. {name}" for i, name in enumerate(names, 1)]
    return SoftDict.from_arrays(
        index.key_vectors,
        [text for _, text in index],
        labels=names,
        encoder=index.encoder,
        similarity=index.similarity,
        temperature=USUAL,
    )


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
    return min(value, 2**53)  # more than there are


def index_file(text: str) -> str:
    """Read the name of an index to save, which no text has: --save shall not replace one.

    >>> index_file("notes.npz")
    'notes.npz'
    """
    if not text.lower().endswith((".npz", ".safetensors")):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .npz or .safetensors, as an index does")
    return text


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
        "with the question, rare ones most: it knows letters, not meanings. --encoder minilm knows some.",
        epilog='example: softdict ask "how do I write an anonymous function?"',
    )
    asker.add_argument("question", metavar="QUESTION", help="in quotes")
    asker.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],
        help="UTF-8 text, its paragraphs set apart by blank lines, under headings in Markdown; or a "
        "folder of .md, .txt and .rst files; without any, Python's own help",
    )
    asker.add_argument(
        "--encoder",
        choices=list(ENCODERS),
        help="ngram counts letters (the default), tfidf words (scikit-learn), minilm is a sentence encoder",
    )
    files = asker.add_mutually_exclusive_group()
    files.add_argument("--save", metavar="PATH", type=index_file, help="keep the index: .npz or .safetensors")
    files.add_argument("--load", metavar="PATH", help="ask an index that was saved, in place of files")
    asker.add_argument("--json", action="store_true", help="print the answer for other programs")
    asker.add_argument(
        "--top", metavar="K", type=count, default=8, help="how many entries share the answer (8)"
    )
    how = asker.add_mutually_exclusive_group()
    how.add_argument(
        "--temperature",
        metavar="T",
        type=temperature,
        default=USUAL,
        help=f"from 0, the best paragraph alone, to inf, all alike ({USUAL})",
    )
    how.add_argument(
        "--hard",
        dest="temperature",
        action="store_const",
        const=0.0,
        help="the best paragraph alone: the same as --temperature 0",
    )
    player = commands.add_parser(
        "play",
        help="write the playground, one interactive HTML file",
        description="Write six panels on hard and soft lookups into one HTML file: it opens by double click.",
    )
    player.add_argument("page", metavar="OUT.html", help="the file; one that is there is replaced")
    player.add_argument(
        "--load", metavar="PATH", help="show an index that ask --save kept, or what SoftDict.save wrote"
    )
    player.add_argument(
        "--query",
        action="append",
        default=[],
        help="a text to ask it, which its encoder encodes now; repeat it",
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
        chosen, rest = (reader := parser()).parse_known_args(argv)
        if rest and (chosen.command != "ask" or any(x.startswith("-") for x in rest)):
            reader.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:  # FILEs after an option
            chosen.files = [*chosen.files, *rest]
        if chosen.command == "ask":
            status = ask(chosen)
        elif chosen.command == "play":
            playground_page(chosen)
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
    except OSError as error:  # such as a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"softdict: cannot write the answer: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as done:  # --help, --version
        return int(done.code or 0)
    return status
