"""`lazy_runtime.compile`: regions of a program that are one XLA program."""

#: Recorded calls with the same kinds of arguments after which a training step is traced. A trace takes as long as some
#: hundred recorded steps of the models of `benchmarks/measurements/steptime.py` lose to traced ones.
TRACE_AFTER = 500
