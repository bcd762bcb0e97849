"""Handwritten digits by soft vote: digits that were seen vote on a new one, the more alike the louder.

Three quarters of the digits that come with scikit-learn are learned, the others are read. The soft vote
stands beside scikit-learn's nearest neighbors, `KNeighborsClassifier(weights="distance")`. For both,
cross-validation on the learned part alone chooses the settings: those that read most digits right, or
those with the least log loss, which asks for honest shares. The run prints:

    chosen for most right:  right of 450  log loss
    nearest neighbors                445     0.100  n_neighbors=3
    soft vote                        447     0.095  temperature=100, top_k=3
    chosen for log loss:    right of 450  log loss
    nearest neighbors                438     0.145  n_neighbors=12
    soft vote                        445     0.047  temperature=50, top_k=None

Right answers are a matter of luck here: on other splits either one is ahead by a digit or three. Log
loss is not: where all digits vote, none is quite ruled out, and being wrong costs less.
"""

from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import ParameterGrid, cross_val_predict, train_test_split
from sklearn.neighbors import KNeighborsClassifier

from softdict.estimators import SoftDictClassifier

X, X_new, y, y_new = train_test_split(*load_digits(return_X_y=True), random_state=0)


def right(y, shares):
    """Count the digits whose largest share is the right one's."""
    return (shares.argmax(axis=1) == y).sum()


models = {
    "nearest neighbors": (
        KNeighborsClassifier(weights="distance", algorithm="ball_tree"),  # the quickest here
        {"n_neighbors": range(1, 17)},
    ),
    "soft vote": (SoftDictClassifier(), {"temperature": [20, 50, 100], "top_k": [3, 10, None]}),
}
tried = {
    name: [
        (settings, cross_val_predict(model.set_params(**settings), X, y, method="predict_proba"))
        for settings in ParameterGrid(grid)
    ]
    for name, (model, grid) in models.items()
}
for aim, gain in {"most right": right, "log loss": lambda y, shares: -log_loss(y, shares)}.items():
    print(f"{f'chosen for {aim}:':22}  right of {len(y_new)}  log loss")
    for name, (model, _) in models.items():
        best, _ = max(tried[name], key=lambda trial: gain(y, trial[1]))
        shares = model.set_params(**best).fit(X, y).predict_proba(X_new)
        words = ", ".join(f"{setting}={value}" for setting, value in best.items())
        print(f"{name:22}  {right(y_new, shares):12}  {log_loss(y_new, shares):8.3f}  {words}")
