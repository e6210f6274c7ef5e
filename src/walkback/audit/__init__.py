"""Many runs: what to train, where it is kept, who trains it, and what it shows."""
