"""The worker on an accelerator: step inputs prepared on the device, captured decode graphs, asynchronous results."""
