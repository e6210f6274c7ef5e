"""What a network is: stem, blocks and readout, their sites, tokens, batches, and the loss. Module -> Anatomy."""
