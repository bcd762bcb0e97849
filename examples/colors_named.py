"""What is this color called? A dict knows the colors that have a name; a SoftDict names any color.

Keys are colors in red, green and blue from 0 to 1, values their names. Names do not blend, but at T = 0 the
nearest answers, and above it all vote: #a0a0a0 lies between two grays, and says so.

    #ff0000  hard: red        soft: red 100%
    #ff6347  hard: coral      soft: coral 80%, salmon 19%
    #ffc000  hard: gold       soft: gold 48%, orange 42%, goldenrod 7%
    #e0b050  hard: goldenrod  soft: goldenrod 46%, coral 23%, tan 16%
    #a0a0a0  hard: gray       soft: gray 35%, silver 35%, tan 29%

Ask for others: python examples/colors_named.py "#336699"
"""

import sys

from softdict import SoftDict

NAMES = {
    "black": "000000", "gray": "808080", "silver": "c0c0c0", "white": "ffffff", "maroon": "800000",
    "red": "ff0000", "coral": "ff7f50", "salmon": "fa8072", "orange": "ffa500", "gold": "ffd700",
    "yellow": "ffff00", "beige": "f5f5dc", "brown": "a52a2a", "olive": "808000", "lime": "00ff00",
    "green": "008000", "teal": "008080", "turquoise": "40e0d0", "cyan": "00ffff", "navy": "000080",
    "blue": "0000ff", "indigo": "4b0082", "violet": "ee82ee", "purple": "800080", "magenta": "ff00ff",
    "pink": "ffc0cb", "goldenrod": "daa520", "tan": "d2b48c", "skyblue": "87ceeb",
}  # fmt: skip


def rgb(code):
    """Return red, green and blue from 0 to 1 of a code like #ff6347."""
    return tuple(part / 255 for part in bytes.fromhex(code.removeprefix("#")))


names = SoftDict({rgb(code): name for name, code in NAMES.items()}, temperature=0.01)
for code in sys.argv[1:] or ["#ff0000", "#ff6347", "#ffc000", "#e0b050", "#a0a0a0"]:
    votes = list(names.lookup(rgb(code)).vote().items())[:3]
    soft = ", ".join(f"{name} {share:.0%}" for name, share in votes if share > 0.01)
    print(f"{code}  hard: {names.at(temperature=0)[rgb(code)]:9}  soft: {soft}")
