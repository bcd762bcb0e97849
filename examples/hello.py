"""From a hard lookup to a soft one, in small steps.

Three entries, keys 0, 1 and 2, are asked for 0.9. The run prints:

    1 a dict finds one entry: 20.0
    2 or none: KeyError
    3 T = 0 finds the nearest: 20.0
    4 T = 0.1 lets the next one in: 19.87
    5 T = 1 blends all three: 21.93
    6 in these shares: 0.302 0.451 0.247
    7 T = 9 hardly listens any more: 23.16
    8 T = inf is the plain mean: 23.33
"""

from softdict import SoftDict

sd = SoftDict({0: 10.0, 1: 20.0, 2: 40.0})
print("1 a dict finds one entry:", sd.hard[1])
try:
    print("2 it found", sd.hard[0.9])
except KeyError:
    print("2 or none: KeyError")
print("3 T = 0 finds the nearest:", sd.at(temperature=0)[0.9])
print("4 T = 0.1 lets the next one in:", round(sd.at(temperature=0.1)[0.9], 2))
print("5 T = 1 blends all three:", round(sd[0.9], 2))
print("6 in these shares:", *sd.lookup(0.9).weights.round(3))
print("7 T = 9 hardly listens any more:", round(sd.at(temperature=9)[0.9], 2))
print("8 T = inf is the plain mean:", round(sd.at(temperature=float("inf"))[0.9], 2))
