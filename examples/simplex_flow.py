"""Draw the replicator-Laplacian flow on the simplex of three classes.

    python examples/simplex_flow.py flow.png

Steepest descent of F(q) = n' KL(r_hat || C q) + tau_q / 2 theta' L theta in the Fisher-Rao metric,
from many starting points, for a strong and a weak Laplacian. Needs the extra ``plots``.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import gsb3se as gs

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
LABELS = ("cat", "lynx", "truck")


def draw(axes, tau_q: float) -> None:
    graph = gs.LabelGraph.from_weights([[0, 1, 0.1], [1, 0, 0.1], [0.1, 0.1, 0]], labels=LABELS)
    confusion = np.array([[0.7, 0.3, 0.05], [0.25, 0.65, 0.05], [0.05, 0.05, 0.9]])
    objective = gs.geometry.Objective(confusion, np.array([55.0, 25.0, 20.0]), graph, tau_q)
    axes.fill(*CORNERS.T, facecolor="#f4f4f4", edgecolor="black")
    rng = np.random.default_rng(0)
    times = np.concatenate([[0.0], np.geomspace(1e-4, 30, 300)])
    for start in rng.dirichlet(np.full(3, 0.9), 30):
        flow = gs.geometry.replicator_laplacian_flow(objective, start * 0.98 + 0.02 / 3, times)
        path = flow.q @ CORNERS
        axes.plot(*path.T, color="C0", linewidth=0.8, alpha=0.7)
        axes.plot(*path[0], ".", color="C0", markersize=3)
    axes.plot(*path[-1], "o", color="C3", label="where the flow rests")
    mlls = gs.geometry.m_projection([0.55, 0.25, 0.2], confusion).q @ CORNERS
    axes.plot(*mlls, "x", color="black", label="maximum likelihood")
    for corner, label in zip(CORNERS, LABELS, strict=True):
        above = corner[1] > 0.5
        place = (corner[0], corner[1] + (0.03 if above else -0.03))
        axes.text(*place, label, ha="center", va="bottom" if above else "top")
    axes.set(title=f"tau_q = {tau_q:g}", aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.12, 1.0))
    axes.axis("off")


def main(path: str = "flow.png") -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.3), constrained_layout=True)
    for axes, tau_q in zip(panels, (0.1, 20.0), strict=True):
        draw(axes, tau_q)
    panels[0].legend(loc="upper left", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
