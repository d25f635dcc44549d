"""What is alike: label graphs, how they are built, and their Laplacians.

A label graph ties K labels by symmetric weights in [0, 1]; its Laplacian L = D - W is the shape of
the model's Gaussian priors. Builders turn embeddings (:mod:`~gsb3se.graph.neighbours`), class names
(:mod:`~gsb3se.graph.embeddings`) and trees (:mod:`~gsb3se.graph.taxonomy`) into one; without any
similarity it is exchangeable. A new builder gives vectors for ``LabelGraph.knn``, or edges with
their lengths and the bridges that connect them (:mod:`~gsb3se.graph.edge_weights` makes weights of
these). It is a file of its own with a short class method of :class:`LabelGraph`; ``cli/graph.py``
offers it by the type of its input file.

This room knows labels and matrices. It must not know counts, priors or shares.
"""

from gsb3se.graph.label_graph import LabelGraph

__all__ = ["LabelGraph"]
