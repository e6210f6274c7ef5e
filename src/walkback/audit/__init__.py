"""Many runs: plans of what to train, a store that survives anything, executors, and the evidence they leave."""
