"""How far does a car still roll? Kernel regression of a real curve, with its bandwidth learned.

50 cars of the 1920s were braked: their speed in miles per hour, and the feet that they needed to stop
(Ezekiel, "Methods of Correlation Analysis", 1930). Speeds are keys, distances are values, and a speed
in between is asked for.

T is the bandwidth squared. At T = 0 the answer is a staircase: the nearest speed answers alone. At
infinity it is the mean, whatever is asked. In between there is a T with which the cars answer best for
each other:

    learned: T = 2.7, a bandwidth of 1.6 miles per hour
           T  error when left out        5    10    15    21  24.5
         0.0                 17.2      6.0  26.0  33.3  53.0  92.0
         0.5                 16.0      6.3  23.9  38.5  52.9  91.0
         2.7                 15.8      9.2  23.2  40.3  57.0  85.5
         9.0                 16.5     14.1  26.8  40.4  58.8  74.3
       100.0                 22.6     33.9  38.0  42.4  47.7  50.9
         inf                 26.0     43.0  43.0  43.0  43.0  43.0
"""

import numpy as np

from softdict import SoftDict, fit_temperature

SPEED = [
    4, 4, 7, 7, 8, 9, 10, 10, 10, 11, 11, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15,
    16, 16, 17, 17, 17, 18, 18, 18, 18, 19, 19, 19, 20, 20, 20, 20, 20, 22, 23, 24, 24, 24, 24, 25
]  # fmt: skip
FEET = [
    2, 10, 4, 22, 16, 10, 18, 26, 34, 17, 28, 14, 20, 24, 28, 26, 34, 34, 46, 26, 36, 60, 80, 20, 26,
    54, 32, 40, 32, 40, 50, 42, 56, 76, 84, 36, 46, 68, 32, 48, 52, 56, 64, 66, 54, 70, 92, 93, 120, 85
]  # fmt: skip

# Speeds repeat, and each car counts: so that they are labels, not names.
cars = SoftDict.from_arrays(np.float64(SPEED), np.float64(FEET), [f"car {i}" for i in range(50)])
learned, result = fit_temperature(cars)
print(f"learned: T = {learned.temperature:.1f}, a bandwidth of {learned.temperature**0.5:.1f} miles per hour")

# ---- from the staircase to the mean --------------------------------------------------------------

ASKED = [5.0, 10.0, 15.0, 21.0, 24.5]
print("       T  error when left out   " + "".join(f"{speed:6g}" for speed in ASKED))
for T in (0, 0.5, learned.temperature, 9, 100, np.inf):
    sd = cars.at(temperature=T)
    error = np.sqrt(np.mean((sd.self_attention(exclude_self=True).value - FEET) ** 2))
    print(f"{T:8.1f}  {error:19.1f}   " + "".join(f"{feet:6.1f}" for feet in sd[ASKED]))
