"""When a claim falls. Measurements and Claim -> findings."""
