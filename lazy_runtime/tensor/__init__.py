"""The tensor inside of torch's functional wrapper, and how it lies on several devices."""
