"""Windows over time.

There is nothing here yet: ``gs.estimate(counts, graph, targets={...})`` and ``gs.batch.run`` infer
windows one by one, each as if it had no neighbours. What looks at several windows together, to
watch them or to smooth them, belongs here.

This room will know estimates and posteriors. It must not know batches or the command line.
"""
