"""Rebuild the head that softdict ships: layer 3, head 1 of all-MiniLM-L6-v2, and what goes into it.

    python examples/build_real_head.py           writes softdict/data/real_head.npz
    python examples/build_real_head.py --check   compares that file with what the weights give here

The weights are those of `real_transformer.py`, which checks their sha256 and makes the layer's inputs.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np
import real_transformer

ASSET = Path(__file__).parents[1] / "softdict" / "data" / "real_head.npz"
LAYER, HEAD = 3, 1
SENTENCES = {
    "tired": "The animal didn't cross the street because it was too tired.",
    "wide": "The animal didn't cross the street because it was too wide.",
}


def build():
    """Return the arrays of the asset by name: three matrices, three biases, and two sentences."""
    model = real_transformer.load()
    head = model.head(LAYER, HEAD)
    arrays = {"w_q": head.w_q, "w_k": head.w_k, "w_v": head.w_v}
    arrays |= dict(zip(("b_q", "b_k", "b_v"), head.biases, strict=False))
    arrays |= {f"x_{name}": model.layer_inputs(text)[LAYER] for name, text in SENTENCES.items()}
    arrays = {name: array.astype(np.float16) for name, array in arrays.items()}
    return arrays | {f"tokens_{name}": np.array(model.tokenize(text)) for name, text in SENTENCES.items()}


def write(path, arrays):
    """Write an .npz in which nothing depends on when it was written."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            with file.open(member, "w") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def differences(found, wanted):
    """Return the names of arrays that are not the same.

    Weights and tokens are copied, so they are equal. Layer inputs are computed, and other machines add in
    another order: where a number lies half way between two of float16, they may round it the other way.
    """
    if found.keys() != wanted.keys():
        return sorted(found.keys() ^ wanted.keys())
    different = []
    for name, array in wanted.items():
        have = found[name]
        same = have.dtype == array.dtype and have.shape == array.shape
        if same and name.startswith("x_"):
            same = bool((abs(have.astype(float) - array) <= np.spacing(abs(array))).all())
        elif same:
            same = bool((have == array).all())
        different += [] if same else [name]
    return different


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(f"the arguments are {' '.join(arguments)!r}, but --check or nothing was expected")
    try:
        arrays = build()
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
    if arguments:
        with np.load(ASSET, allow_pickle=False) as file:
            different = differences(dict(file), arrays)
        if different:
            sys.exit(f"{ASSET.name} differs from its rebuild in {', '.join(different)}")
        print(f"{ASSET.name} is as rebuilt: {len(arrays)} arrays")
    else:
        write(ASSET, arrays)
        print(f"{ASSET.name}: {len(arrays)} arrays, {ASSET.stat().st_size / 1000:.1f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
