"""How a posterior is found: one room a method.

:mod:`~gsb3se.inference.contracts` says what a backend is, and lists them by name. A new one is a
room here with a ``backend.py``: a frozen dataclass of settings with one method, ``infer(problem,
rng)``, that ends with ``identified(Posterior(...))``, which adds what the prior fills in. It is
exported by its room, entered in ``contracts.BACKENDS`` (which also has the optional protocols: work
on the source done once, many problems in a pass) and in ``gsb3se/__init__.py``, and added to the
tables of tests/test_agreement_with_hmc.py and tests/test_any_input.py.
:mod:`~gsb3se.inference.hamiltonian` is the one integrator of the numpy chains; every threshold in
the number of classes stands in :mod:`gsb3se.support.limits`.

    structured/   the default: propagation, saddlepoints, exact chains where labels are few
    hmc/          the reference: NumPyro's NUTS
    gaussian/     modes and Gaussians: Newton-CG and nested Laplace
    variational/  a fitted guide in Pyro, made of structured's pieces

structured, hmc and gaussian do not import one another, so that they test each other. This room
knows the model and what a posterior is. It must not know files, plots or the command line.
"""
