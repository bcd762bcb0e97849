"""Measure tensors: attention beside torch's own kernel, and what the look for tensors costs without any.

Two calls are timed in turn, in one run, after their answers were compared; a figure is the median ratio.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from learn import ratios  # noqa: E402
from measure import HEADS, REST, THREADS, machine  # noqa: E402


def fused(rounds):
    """Time attention and soft_lookup against torch's kernel, at the sizes of A: forward, backward, both."""
    import torch

    from softdict import attention, soft_lookup

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    kernel, rows = torch.nn.functional.scaled_dot_product_attention, []
    h, n, d = HEADS["h"], HEADS["n"], HEADS["d"]
    q, k, v, g = (torch.randn(1, h, n, d) for _ in range(4))  # with three axes the kernel is slower
    some = torch.rand(n, n) < 0.5
    for what, function, ours, theirs in [
        ("attention", attention, {}, {}),
        ("attention(causal=True)", attention, {"causal": True}, {"is_causal": True}),
        ("attention(where=...)", attention, {"where": some}, {"attn_mask": some}),
        ("soft_lookup", soft_lookup, {"similarity": "scaled_dot"}, {}),
    ]:
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]

        def own(function=function, how=ours, inputs=inputs):
            return function(*inputs, **how)

        def peer(how=theirs, inputs=inputs):
            return kernel(*inputs, **how)

        def forward(call):
            def timed():
                time.sleep(REST)
                with torch.no_grad():
                    return call()

            return timed

        def backward(out, inputs=inputs):
            return lambda: torch.autograd.grad(out, inputs, g, retain_graph=True)

        def both(call, inputs=inputs):
            return lambda: torch.autograd.grad(call(), inputs, g)

        pairs = {
            "forward": (forward(own), forward(peer)),
            "backward": (backward(own()), backward(peer())),
            "both": (both(own), both(peer)),
        }
        for way, (one, other) in pairs.items():
            answers, found = ratios(one, other, rounds)
            for a, b in zip(*([x] if way == "forward" else x for x in answers), strict=True):
                assert torch.allclose(a, b, rtol=0, atol=1e-5), f"{what} {way}: the answers differ"
            rows.append({"what": f"{what} / torch's kernel, {way}, sizes of A", "target": 1.15, **found})
            show(rows[-1])
    return rows


def door(rounds):
    """Time the look for tensors, which all have to pay for, beside whole lookups of NumPy's arrays, n = 8."""
    from softdict import SoftDict, soft_lookup
    from softdict._backend import OWN, library

    rng, rows = np.random.default_rng(0), []
    q, k, v = rng.normal(size=(1, 16)), rng.normal(size=(8, 16)), rng.normal(size=(8, 16))
    sd, one = SoftDict.from_arrays(k, v), q[0]

    def often(call):
        def timed():
            for _ in range(5000):
                out = call()
            return out

        return timed

    for what, whole, look, found in [
        ("soft_lookup", lambda: soft_lookup(q, k, v), lambda: library(q, k, v, None, None), None),
        ("sd[q]", lambda: sd[one], lambda: type(one) in OWN, True),
    ]:
        (said, answer), ratio = ratios(often(look), often(whole), rounds)
        assert said is found, f"{what}: an array is taken for a tensor"
        assert answer.shape[-1:] == (16,)
        rows.append({"what": f"the look for tensors / {what} of arrays, n = 8", "target": 0.02, **ratio})
        show(rows[-1])
    return rows


def show(row):
    print(f"{row['what']:<62}{row['median']:>7.3f}{row['min']:>7.3f}{row['max']:>7.3f}", flush=True)


def main():
    """Measure and write the figures down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed (%(default)s)")
    parser.add_argument("--out", type=Path, default="tensors.json", help="%(default)s")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parents[1]))  # this checkout, whatever is installed
    result = {"rounds": args.rounds, "machine": machine()}
    print(f"{'':<62}{'median':>7}{'min':>7}{'max':>7}")
    result["figures"] = [*door(args.rounds), *fused(args.rounds)]
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
