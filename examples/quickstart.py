"""From a classifier's predictions to the target's class frequencies, on real digits.

python examples/quickstart.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

import gsb3se as gs

rng = np.random.default_rng(0)
images, digit = load_digits(return_X_y=True)
order = rng.permutation(len(digit))
train, validation, pool = np.split(order, [300, 800])

# A frozen classifier, and its predictions on labelled validation rows.
classifier = GaussianNB(var_smoothing=1e-3).fit(images[train], digit[train])
predicted = classifier.predict(images[validation])

# A target population in which the even digits have become three times as frequent.
q = np.where(np.arange(10) % 2 == 0, 3.0, 1.0)
q /= q.sum()
drawn = gs.shifts.draw_target(digit[pool], q, n=500, seed=rng)
target = pool[drawn.indices]
target_predicted = classifier.predict(images[target])

# Counts are all that the estimators see. Labels are explicit, and counts add up.
counts = gs.ShiftCounts.from_predictions(
    digit[validation], predicted, target_predicted, labels=range(10)
)
print(counts)

# Which digits look alike, from their mean images: the graph that the hierarchy smooths on.
graph = gs.LabelGraph.from_class_means(images[train], digit[train], k=4)
print(graph, f"with algebraic connectivity {graph.algebraic_connectivity:.3f}")

for name, estimate in {
    "as predicted": counts.target / counts.n_target,
    "BBSE": gs.baselines.bbse(counts),
    "RLLS": gs.baselines.rlls(counts),
    "MLLS": gs.baselines.mlls(counts),
}.items():
    error = np.abs(estimate - drawn.realised).sum()
    print(f"{name:13s} L1 error {error:.3f}   even digits {estimate[::2].sum():.3f}")
print(f"{'truth':13s} {'':14s}   even digits {drawn.realised[::2].sum():.3f}")

# The posterior: the same shares with their uncertainty, and a status that says what to know of it.
post = gs.estimate(counts, graph)
print(post.summary())
low, high = post.interval(0.9)
held = ((low <= drawn.realised) & (drawn.realised <= high)).sum()
print(f"{held} of 10 intervals hold the true share")
